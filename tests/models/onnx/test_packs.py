"""Packs of a model: made of compiled kernels, taken apart where they are no good, and right on the emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest

import roller
from benchmarks.models import lstm
from roller.backends.cuda.toolchain import available
from roller.emulator.device import EmulatedDevice
from roller.hardware import load_spec
from roller.horizontal import HorizontalKernel
from roller.models.batch import horizontal as packed
from roller.models.batch.horizontal import packs_for, planned
from roller.models.expected import expected_of
from roller.models.graph.steps import Run, Together
from roller.models.options import ModelOptions
from roller.models.session.bundle_run import run_bundle
from roller.models.session.gpu_bundle import ModelBundle
from roller.models.session.horizontal import pack_key, packs_of
from roller.runtime.build_pool import BuildResult
from roller.runtime.cache import KernelCache
from roller.runtime.records import Record
from tests.models.session import gpu, programs

SPEC = load_spec(gpu.DEVICE)


class Here:
    """A crew of one, which works at once; it builds nothing but says what a compiler would."""

    def __init__(self, spills=0):
        self.spills, self.built = spills, []

    def map(self, tasks, on_result=None, patient=False):
        self.built += [task.packed for task in tasks.values()]
        made = {k: t.packed.with_binary(b"image", spill_bytes=self.spills, registers=9) for k, t in tasks.items()}
        return {key: BuildResult(Record(key, "built"), value) for key, value in made.items()}


def side_by_side(count: int = 4, width: int = 32):
    """Products side by side, and activations of them side by side."""
    names = [f"h{n}" for n in range(count)]
    ends = [f"y{n}" for n in range(count)]
    steps = [
        Together(tuple((programs.run("product", ("x", f"w{n}"), h),) for n, h in enumerate(names)), packed=True),
        Together(tuple((programs.run("tanh", h, y),) for h, y in zip(names, ends, strict=True)), packed=True),
    ]
    shape = (1, width)
    mlp = programs.mlp(1, *shape)
    sources = {"product": mlp.kernels["matmul"], "tanh": programs.unary(shape, "tanh")}
    weights = {f"w{n}": programs.random(n, width, width) for n in range(count)}
    return programs.program(steps, {"x": shape}, ends, dict.fromkeys(names + ends, shape), sources, weights)


def made(program, crew=None, built=False, cache=None, artifacts=None):
    return packs_for(program, artifacts or gpu.kernels(program), SPEC, crew or Here(), built=built, cache=cache)


def test_packs_have_kernels_with_room_for_them_and_a_price():
    found = made(side_by_side())
    assert {key: k.capacity for key, k in found.kernels.items()} == {"product": {"product": 4}, "tanh": {"tanh": 4}}
    assert found.predicted_s.keys() == {"4*product", "4*tanh"}
    assert found.seconds == pytest.approx(sum(found.predicted_s.values()))
    plain = replace(side_by_side(), steps=tuple(programs.flat(side_by_side().steps)))
    chosen = planned(plain, gpu.kernels(plain), SPEC, found)
    assert [(w.name, w.launches) for w in chosen.ways] == [("packed", 2), ("one by one", 8)]
    assert chosen.plain is not None
    slow = replace(found, seconds=1.0)
    assert planned(plain, gpu.kernels(plain), SPEC, slow).plain is None
    assert not packs_of(planned(plain, gpu.kernels(plain), SPEC, slow).plan.program.steps)


def test_what_cannot_share_a_launch_runs_before_and_says_why():
    program = side_by_side()
    artifacts = dict(gpu.kernels(program))
    launches = tuple(replace(x, grid=(x.grid[0], 2, 1)) for x in artifacts["tanh"].launches)
    artifacts["tanh"] = replace(artifacts["tanh"], launches=launches)
    found = made(program, artifacts=artifacts)
    assert found.left_out == {"tanh": "its blocks are numbered in more than one dimension"}
    assert [type(s) for s in found.program.steps] == [Together, Run, Run, Run, Run]
    assert found.kernels.keys() == {"product"}


def test_a_pack_that_spills_is_taken_apart():
    found = made(side_by_side(), Here(spills=16), built=True)
    assert not packs_of(found.program.steps)
    assert not found.kernels
    assert "spill 16 bytes" in found.left_out["product"]


def test_what_is_too_much_for_a_table_is_two_launches():
    found = made(side_by_side(count=200))
    sizes = [len(s.lanes) for s in found.program.steps if isinstance(s, Together)]
    assert sum(sizes) == 400
    assert len(sizes) == 3  # products have three arrays each, activations two
    assert all(stage.table_bytes <= 4096 for k in found.kernels.values() for stage in k.stages)


def test_a_kernel_with_more_programs_serves_packs_of_some_of_them():
    program = side_by_side(2)
    first, second = program.steps
    both = Together((first.lanes[1], (programs.run("tanh", "h0", "y0"),)), packed=True)
    steps = (Together((first.lanes[0],), packed=True), both, Together(second.lanes[1:], packed=True), first)
    artifacts = gpu.kernels(program)
    _, kernels = packed._chosen(list(steps), artifacts, packed.Prices(artifacts, SPEC, program.kernels))
    assert kernels.keys() == {"product", "tanh", "product+tanh"}
    assert len({id(k) for k in kernels.values()}) == 1
    assert kernels["tanh"].capacity == {"product": 2, "tanh": 1}


def test_a_kernel_serves_no_more_packs_than_its_table_has_room_for():
    program = side_by_side(200)
    products, activations = program.steps
    both = Together((products.lanes[1], (programs.run("tanh", "h0", "y0"),)), packed=True)
    many = (Together(products.lanes[:100], packed=True), Together(activations.lanes, packed=True))
    found = made(replace(program, steps=(both, *many)))
    assert found.kernels.keys() == {"product", "tanh", "product+tanh"}
    assert len({id(k) for k in found.kernels.values()}) == 2  # one of the two joins the kernel of both
    assert all(stage.table_bytes <= 4096 for k in found.kernels.values() for stage in k.stages)


def test_built_packs_are_kept_in_the_cache():
    program, cache, crew = side_by_side(), KernelCache(), Here()
    one = made(program, crew, built=True, cache=cache)
    again = made(program, crew, built=True, cache=cache)
    assert len(crew.built) == 2
    assert {k: p.binary for k, p in again.kernels.items()} == {k: p.binary for k, p in one.kernels.items()}
    assert all(isinstance(p, HorizontalKernel) and p.binary == b"image" for p in again.kernels.values())


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_an_lstm_in_packs_computes_what_onnx_runtime_does(tmp_path, order):
    path = tmp_path / "lstm.onnx"
    lstm.build(path, 1, lstm.Lstm(layers=3, steps=3, width=16))
    made = roller.compile_model(path, "h200", top_k=1, progress=False, experimental=("packs",))
    one, streams = made.planned.ways
    assert one.name == "packed"
    assert one.launches < 0.6 * streams.launches
    made.save(tmp_path / "b", [expected_of(path, made.plan.program)])
    bundle = ModelBundle(tmp_path / "b")
    packs = bundle.packs()
    assert packs.keys() == {pack_key(p) for p in packs_of(bundle.plan().program.steps)}
    assert available() is not None or all(p.binary.startswith(b"\x7fELF") for p in packs.values())
    device = EmulatedDevice("random", order=order, check=False)
    results = run_bundle(tmp_path / "b", tmp_path / "r.json", device, samples=2)
    assert results["ok"], results["phases"]
    assert results["phases"]["plain"]["way"] == "graph"
    assert results["phases"]["plain"]["ok"]
    labels = [row["step"] for row in results["phases"]["profile"]["steps"]]
    assert any(label.startswith("together: ") for label in labels)


@pytest.mark.parametrize("named", ["pack", ("packs", "cubes")])
def test_experiments_that_are_not_there_are_refused(named):
    with pytest.raises(roller.RollerError, match="experimental: expected one of"):
        assert ModelOptions(experimental=named).packs


def test_packs_are_made_where_they_are_asked_for_only():
    assert not ModelOptions().packs
    assert ModelOptions(experimental=("packs",)).packs
