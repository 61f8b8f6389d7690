"""Several kernels behind one launch: right in any order of threads, as light as the kernels it was made of."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from roller import ops
from roller.artifact import KernelArtifact
from roller.backends.cuda import toolchain
from roller.backends.rocm import toolchain as rocm
from roller.compiler.pipeline import lower
from roller.construction.constructor import construct_candidates
from roller.emulator.emulate import ORDERS
from roller.emulator.horizontal import EmulatedPack
from roller.errors import BuildError, EmulationError
from roller.expr import TensorExpr
from roller.expr.evaluate import evaluate
from roller.hardware import load_spec
from roller.horizontal import HorizontalKernel, Member, Stage
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu.emit import horizontal as packed

PRODUCT, LONG = ops.matmul(1, 64, 128), ops.matmul(1, 512, 256)
SUMS, GATE = ops.reduce("sum", (8, 64), axes=(1,)), ops.elementwise("tanh", (3, 40))


@functools.cache
def lowered(expression: TensorExpr, device: str = "h200", wide: bool = False) -> KernelArtifact:
    """The best prediction; where ``wide``, the best in parts that are summed afterwards, and with large blocks."""
    spec = load_spec(device)
    for found in construct_candidates(expression, spec, ConstructOptions(top_k=10 if wide else 1)):
        made = lower(found.program, expression, spec)
        if not wide or (len(made.launches) == 2 and made.launches[0].block[0] > spec.teu.lanes):
            return made
    raise AssertionError("no such candidate")


@functools.cache
def kernels(device: str = "h200") -> dict[str, KernelArtifact]:
    artifacts = {"product": lowered(PRODUCT, device), "sums": lowered(SUMS, device), "gate": lowered(GATE, device)}
    return {"split": lowered(LONG, device, wide=True), **artifacts}


@functools.cache
def made(device: str = "h200") -> HorizontalKernel:
    return packed.pack(kernels(device), {"split": 2, "product": 10, "sums": 10, "gate": 10})


def run(
    pack: HorizontalKernel, counts: dict[str, int], order: str, artifacts: dict[str, KernelArtifact] | None = None
) -> None:
    """Run a pack on random arrays, and compare every output with the reference of its kernel."""
    artifacts = artifacts or kernels()
    random, memory, wanted = np.random.default_rng(0), {}, []
    for key, count in counts.items():
        expression = artifacts[key].expression
        for n in range(count):
            arrays = [random.standard_normal(t.shape, np.float32) for t in expression.inputs]
            wanted += [(key, n, a.name, out) for a, out in
                       zip(artifacts[key].outputs, evaluate(expression, arrays), strict=True)]  # fmt: skip
            given = dict(zip((a.name for a in artifacts[key].inputs), arrays, strict=True))
            memory[key, n] = {
                a.name: given.get(a.name, np.full(a.shape, np.nan, a.dtype)) for a in artifacts[key].arguments
            }
    emulated = EmulatedPack(pack)
    for number, stage in enumerate(pack.stages):
        sets = [[{name: (a.ctypes.data, a.nbytes) for name, a in memory[m.kernel, n].items()}
                 for n in range(counts[m.kernel])] for m in stage.members]  # fmt: skip
        emulated.launch(number, sets, order=order)
    for key, n, name, out in wanted:
        np.testing.assert_allclose(memory[key, n][name].reshape(out.shape), out, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_programs_of_any_size_share_a_launch(order):
    pack = made()
    parts, sums = pack.stages
    assert [m.kernel for m in parts.members] == ["split", "product", "sums", "gate"]
    assert [m.kernel for m in sums.members] == ["split"]  # what waits for partial sums is a launch of its own
    assert len({m.threads for m in parts.members}) > 1  # some threads have nothing to do, and barriers miss none
    assert kernels()["sums"].launches[0].block[1] > 1  # numbered in two dimensions by itself
    run(pack, {"split": 2, "product": 3, "sums": 1, "gate": 2}, order)
    run(pack, {"split": 0, "product": 0, "sums": 2, "gate": 0}, order)


def test_several_programs_whose_parts_are_summed_afterwards():
    two = {"split": lowered(LONG, wide=True), "other": lowered(ops.matmul(1, 256, 512), wide=True)}
    pack = packed.pack(two, {"split": 2, "other": 3})
    assert [m.kernel for m in pack.stages[1].members] == ["split", "other"]  # whose table stands behind programs
    run(pack, {"split": 2, "other": 1}, "reverse", two)


def test_equal_programs_are_in_the_source_once():
    pack = made()
    assert len(re.findall(r"void roller_program_\w+\(", pack.source)) == 5
    assert pack.source.count("extern __shared__") == 1
    assert pack.capacity == {"split": 2, "product": 10, "sums": 10, "gate": 10}
    assert len(pack.stages[0].table([[], [], [], []])) == pack.stages[0].table_bytes


@pytest.mark.skipif(toolchain.available() is not None, reason="NVRTC is not installed")
@pytest.mark.parametrize("device", ["v100", "a100", "h200"])
def test_packs_are_built_without_spills_and_read_their_table_where_it_is(device):
    pack = made(device)
    arch = str(pack.target["arch"])
    binary, log = toolchain.compile_source(pack.source, arch)
    assert binary.startswith(b"\x7fELF")
    assert toolchain.resources(log)["spill_bytes"] == 0
    most = max(toolchain.build(a).build["registers"] for a in kernels(device).values())
    assert toolchain.resources(log)["registers"] <= most + 16
    ptx = toolchain.to_ptx(pack.source, arch)
    assert not re.search(r"(ld|st)\.local", ptx)  # neither a copy of the table nor arrays indexed at run time
    assert "ld.global" in ptx
    assert not re.search(r"^\s*(ld|st)\.(v\d\.)?[fub]\d", ptx, re.M)  # pointers of the table are known to be global


@pytest.mark.slow
@pytest.mark.skipif(rocm.available() is not None, reason="hipcc is not installed")
def test_packs_are_built_for_amd_devices():
    pack = made("mi50")
    _, log = rocm.compile_source(pack.source, str(pack.target["arch"]))
    assert rocm.resources(log)["spill_bytes"] == 0


def test_a_pack_is_json_and_back():
    pack = made().with_binary(b"image", registers=9)
    assert HorizontalKernel.from_dict(pack.to_dict()) == pack


def test_what_cannot_share_a_launch_is_refused_with_its_reason():
    plain = kernels()["product"]
    other = lowered(PRODUCT, "v100")
    with pytest.raises(BuildError, match="another target"):
        packed.pack({"a": plain, "b": other}, {"a": 1, "b": 1})
    texts = {
        "wgmma": plain.source.replace("__syncthreads();", "wgmma;"),
        "blockIdx.y": plain.source.replace("blockIdx.x", "blockIdx.y"),
        "__shared__": plain.source.replace("__shared__ alignas", "__shared__ volatile alignas"),
    }
    for what, text in texts.items():
        assert text != plain.source, what
        launches = tuple(type(x)(text, *list(x.__dict__.values())[1:]) for x in plain.launches)
        changed = KernelArtifact(**{**plain.__dict__, "launches": launches})
        assert packed.why_not(changed), what
    assert not packed.why_not(plain)


def test_threads_that_leave_are_told_from_threads_that_are_lost():
    """Only those a program has no use for may go before a barrier."""
    pack = packed.pack({"product": lowered(PRODUCT)}, {"product": 1})
    (member,) = pack.stages[0].members
    wide = Stage("packed_0", member.threads, pack.stages[0].dynamic_shared_bytes, (member,))
    lost = pack.source.replace("  const unsigned block = blockIdx.x;", "  const unsigned block = blockIdx.x;\n"
                               "  if (threadIdx.x == 5) { return; }")  # fmt: skip
    with pytest.raises(EmulationError, match=r"returned while other threads|never arrive"):
        run(HorizontalKernel("cuda", pack.target, lost, (wide,)), {"product": 1}, "forward")


def test_tables_have_room_for_what_a_launch_may_pass():
    artifacts = kernels()
    most = packed.largest_capacity(list(artifacts.values()))
    stage = packed.pack(artifacts, dict.fromkeys(artifacts, most)).stages[0]
    assert 4096 - 8 * sum(len(m.arguments) for m in stage.members) - 40 < stage.table_bytes <= 4096
    with pytest.raises(Exception, match="at most 1 argument sets, got 2"):
        Stage("k", 1, 0, (Member("a", 0, 1, 1, 1, ("x",)),)).table([[{"x": 1}, {"x": 2}]])
