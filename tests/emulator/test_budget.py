"""Proofs within seconds: right kernels pass, planted faults are found in every template, whole or by blocks."""

from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.compiler import pipeline
from roller.compiler.autotune.prove_on_emulator import _difference_from_reference
from roller.emulator import budgeted_proof, prove
from roller.emulator.proof_result import BLOCKS, NOTHING, WHOLE
from roller.emulator.time_allowance import Allowance
from roller.errors import EmulationError
from roller.hardware import load_spec
from tests.emulator.faults import FAULTS, planted

#: Device, expression and template: shapes with tails that fill several blocks.
KERNELS = {
    "tiled": ("v100", lambda: ops.matmul(97, 65, 50), "tiled"),
    "tiled amd": ("mi250x", lambda: ops.matmul(97, 65, 50), "tiled"),
    "wmma": ("v100", lambda: ops.matmul(320, 272, 128, dtype="float16"), "matrix"),
    "mma": ("a100", lambda: ops.matmul(320, 272, 128, dtype="float16"), "matrix"),
    "wgmma": ("h200", lambda: ops.matmul(256, 384, 128, dtype="float16"), "matrix"),
    "rows": ("h200", lambda: ops.softmax((70, 130)), "rows"),
    "streaming": ("a100", lambda: ops.elementwise(("add", "relu"), (50, 101)), "streaming"),
    "window": ("v100", lambda: ops.pool2d("max", 3, 5, 23, 23, 3, 3), "window"),
    "winograd": ("v100", lambda: ops.conv2d(1, 16, 14, 14, 33, 3, 3, padding=1), "winograd4"),
}
#: Processor seconds: a limit that nothing here comes near, however many share the machine's caches and cores.
SECONDS = 900.0
_made = {}


def kernel(name):
    """Return the best program's kernel of the template."""
    if name not in _made:
        device, expression, structure = KERNELS[name]
        e = expression()
        # One warp alone needs no barriers.
        found = next(c for c in roller.construct(e, device, 40)
                     if c.program.structure == structure
                     and (structure != "matrix" or c.program.threads_per_block > 32))  # fmt: skip
        _made[name] = pipeline.lower(found.program, e, load_spec(device))
    return _made[name]


def judged(made, built, **options):
    return prove(made, budget_s=SECONDS, compare_at=_difference_from_reference, cache_dir=built, **options)


#: Several builds of g++ each: the quick ones in the fast tests, all in the slow ones.
_QUICK = ("tiled", "tiled amd", "rows", "streaming", "window")
EVERY = [n if n in _QUICK else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]


@pytest.mark.parametrize("name", EVERY)
def test_right_kernels_are_proved_and_wrong_ones_found(built, name):
    made = kernel(name)
    proof = judged(made, built)
    assert proof.ok and proof.scope == WHOLE and proof.proved == "emulated", str(proof)
    wrong = {fault.__name__: planted(made, fault) for fault in FAULTS}
    tried = {n: judged(w, built) for n, w in wrong.items() if w is not None}
    assert len(tried) >= 3
    assert {n for n, p in tried.items() if p.ok} == set()


@pytest.mark.parametrize("name", EVERY)
def test_blocks_of_a_kernel_show_what_is_wrong_too(built, name, monkeypatch):
    monkeypatch.setattr(budgeted_proof, "_WHOLE", 1e-9)
    monkeypatch.setattr(budgeted_proof, "_MOST_BLOCKS", 6)
    made = kernel(name)
    if made.launches[0].grid[0] < 4 or len(made.launches) > 1:
        pytest.skip("its few blocks are run whole")
    proof = judged(made, built)
    assert proof.ok and proof.scope == BLOCKS and 2 <= proof.run < proof.blocks, str(proof)
    assert proof.proved == f"emulated: {proof.run} of {proof.blocks} blocks"
    wrong = {fault.__name__: planted(made, fault) for fault in FAULTS}
    tried = {n: judged(w, built) for n, w in wrong.items() if w is not None}
    assert {n for n, p in tried.items() if p.ok} == set()


def test_what_takes_too_long_is_not_proved_and_says_why(built, monkeypatch):
    made = kernel("winograd")
    monkeypatch.setattr(Allowance, "left_s", property(lambda self: 1e-9))  # gone before the first block has ended
    proof = prove(made, budget_s=1e-4, cache_dir=built)
    assert proof.ok and proof.scope == NOTHING and proof.proved.startswith("not proved (one block of ")
    monkeypatch.setattr(budgeted_proof, "MOST_BYTES", 1000)
    proof = prove(made, budget_s=1.0, cache_dir=built)
    assert proof.scope == NOTHING and "its arrays take" in proof.proved


def test_a_kernel_that_cannot_be_built_is_an_error(built, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EmulationError, match=r"found none on PATH\. Install g"):
        prove(kernel("rows"), budget_s=1.0, cache_dir=built)


def test_integers_that_are_never_written_are_found(built):
    e = ops.elementwise(("add",), (64, 64), dtype="int32")
    made = pipeline.lower(roller.construct(e, "v100", 1)[0].program, e, load_spec("v100"))
    assert judged(made, built).ok
    fewer = replace(made, launches=(replace(made.launches[0], grid=(made.launches[0].grid[0] - 1, 1, 1)),))
    assert not judged(fewer, built).ok
