"""Programs for warp groups: made where whole chunks can be copied, priced with what they read, right end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions, ops
from roller.emulator import prove
from roller.templates.common.forms import canonical_forms
from roller.templates.gpu.emit.cuda import lower
from roller.templates.gpu.matrix.candidates import matrix_candidates
from roller.templates.gpu.matrix.price import matrix_block_work
from roller.tile.geometry import Geometry

H200 = roller.load_spec("h200")
F16 = {"dtype": "float16"}


def _batches(expr):
    forms = canonical_forms(expr, ConstructOptions())
    found = [b for form in forms for b in matrix_candidates((Geometry.of(form),), H200, ConstructOptions())]
    return [b for b in found if b.fragment.reads_scratchpad]


def test_large_products_of_half_precision_run_on_warp_groups():
    best = roller.construct(ops.matmul(4096, 4096, 4096, **F16), device=H200)[0].program
    assert best.fragment.family == "wgmma" and best.fragment.arch == "sm_90a"
    assert best.threads_per_block % 128 == 0 and not best.storage_padding and best.stages > 2


@pytest.mark.parametrize(
    "expr",
    [
        ops.matmul(1000, 1001, 1003, **F16),  # rows of no whole chunks
        ops.matmul(16, 4096, 4096, **F16),  # three quarters of a product wasted
        ops.matmul(1024, 1024, 1024, acc_dtype="float16", **F16),
        ops.matmul(1024, 1024, 1024, dtype="int8"),
    ],
)
def test_nothing_else_does(expr):
    assert not _batches(expr)


def test_constructed_kernels_are_right():
    expr = ops.matmul(200, 264, 136, epilogue=("bias", "relu"), **F16)
    # The smallest products are as fast on single warps: here there are none.
    groups = replace(H200, fragments=tuple(f for f in H200.fragments if f.reads_scratchpad))
    found = [c for c in roller.construct(expr, device=groups) if c.program.structure == "matrix"]
    artifact = lower(found[0].program, expr, H200.target["arch"], "h200")
    assert artifact.target["arch"] == "sm_90a"
    proof = prove(artifact)
    assert proof.ok, str(proof)


def test_devices_without_the_instruction_have_no_such_programs():
    expr = ops.matmul(1024, 1024, 1024, **F16)
    assert _batches(expr)
    for device in ("a100", "v100"):
        found = roller.construct(expr, device=device)
        assert not any(c.program.fragment and c.program.fragment.reads_scratchpad for c in found)


def test_every_product_is_priced_with_the_operands_it_reads_anew():
    batch = next(b for b in _batches(ops.matmul(4096, 4096, 4096, **F16)) if b.fragment.n == 128)
    half = replace(batch, fragment=next(f for f in H200.fragments if f.name == "wgmma.m64n64k16.f16.f32"))
    none = (np.zeros(len(batch)), np.zeros(len(batch)))
    wide, narrow = (matrix_block_work(b, H200, none, None) for b in (batch, half))
    m, n = batch.register[:, 0], batch.register[:, 1]
    again = m * 16 * 2 * (n / 64 - n / 128)  # bytes of A per 16 of k: read for twice as many products
    # A quarter of them for each of the group's warps, at 128 bytes a cycle.
    np.testing.assert_allclose(narrow.scratchpad - wide.scratchpad, again / 4 / 128)
    assert ((wide.chain == 0) == (batch.stages > 2)).all()


def test_fewer_steps_are_on_their_way_than_stages_where_products_outlive_their_step():
    batch = _batches(ops.matmul(1024, 1024, 1024, **F16))[0]
    ahead = {stages: replace(batch, stages=stages).copy_steps_in_flight for stages in (1, 2, 3, 4)}
    assert ahead == {1: 0, 2: 1, 3: 1, 4: 2}
