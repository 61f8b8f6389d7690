"""Neighbours of a program: one step away, within every limit, the same list each time."""

from __future__ import annotations

import math

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.construction.neighbours import neighbour_programs
from roller.hardware import load_spec
from roller.templates.cpu import lane_count
from tests.construction.rules import padded_waste

EXPRESSIONS = {
    "matmul": ops.matmul(96, 200, 256),
    "matvec": ops.matmul(512, 1, 4096),
    "conv2d": ops.conv2d(1, 32, 14, 14, 48, 3, 3, padding=1),
    "depthwise": ops.depthwise_conv2d(1, 32, 28, 28, 3, 3),
    "relu": ops.elementwise("relu", (128, 1000)),
    "large relu": ops.elementwise("relu", (1 << 25,)),
    "sum": ops.reduce("sum", (128, 1000), (1,)),
    "softmax": ops.softmax((128, 1000)),
}


@pytest.mark.parametrize("device", ["v100", "mi50", "cpu-avx512", "cpu-neon"])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_neighbours_fit_and_are_new(name, device):
    expr, spec, options = EXPRESSIONS[name], load_spec(device), ConstructOptions()
    for start in roller.construct(expr, spec, top_k=3):
        found = neighbour_programs(start.program, expr, spec, options)
        texts = [str(c.program).partition(" relaxed")[0] for c in found]
        assert found
        assert len(set(texts)) == len(texts)
        assert str(start.program).partition(" relaxed")[0] not in texts
        assert [c.estimate.seconds for c in found] == sorted(c.estimate.seconds for c in found)
        assert all(math.isfinite(c.estimate.seconds) for c in found)
        if spec.kind == "gpu":
            threads = [c.program.threads_per_block for c in found]
            assert all(t <= spec.limits.threads_per_block for t in threads)
            whole = [t % spec.teu.lanes == 0 for t in threads]
            assert all(w or "execution_unit" in c.program.relaxed for w, c in zip(whole, found, strict=True))
            assert all(whole) or start.program.structure == "window"
        assert found == neighbour_programs(start.program, expr, spec, options)


@pytest.mark.parametrize("sizes", [(256, 256, 512), (500, 51, 33)])
def test_neighbours_of_a_matrix_program_stay_whole_fragments(sizes):
    expr, spec, options = ops.matmul(*sizes, dtype="float16"), load_spec("a100"), ConstructOptions()
    start = next(c.program for c in roller.construct(expr, spec) if c.program.structure == "matrix")
    found = [c.program for c in neighbour_programs(start, expr, spec, options)]
    f = start.fragment
    for p in found:
        register = p.tile("register")
        assert not register["i"] % (f.m if p.matrix_axes[0] == "i" else f.n) and register["k"] == f.k
        assert not register["j"] % (f.n if p.matrix_axes[0] == "i" else f.m) and "execution_unit" not in p.relaxed
    changed = [(p.stages != start.stages, p.raster != start.raster, p.tiles != start.tiles) for p in found]
    assert all(sum(c) == 1 for c in changed if p.split_k == start.split_k)
    assert {c.index(True) for c in changed if any(c)} == {0, 1, 2}
    assert all(p.stages <= 2 for p in found) or sizes[1] % 2 == 0  # odd rows pass through registers


def test_one_step_changes_one_thing():
    expr, spec = EXPRESSIONS["matmul"], load_spec("cpu-avx512")
    start = roller.construct(expr, spec, top_k=1)[0].program
    lanes = lane_count(spec, 4)
    found = [c.program for c in neighbour_programs(start, expr, spec, ConstructOptions())]
    kinds = set()
    for p in found:
        register = np.array(p.tiles[0][1]) != np.array(start.tiles[0][1])
        block = np.array(p.tiles[-1][1]) != np.array(start.tiles[-1][1])
        if p.vector_axis != start.vector_axis:
            kinds.add("vectors")
        elif p.split_k != start.split_k:
            kinds.add("split")
        elif p.staged != start.staged:
            kinds.add("staging")
            assert not register.any() and not block.any()
        else:
            kinds.add("register" if register.any() else "block")
            assert register.sum() <= 1 and (not register.any() or (block & ~register).sum() == 0)
        vector = p.axis_names.index(p.vector_axis)
        assert p.tiles[0][1][vector] % lanes == 0
    assert {"register", "block", "staging", "vectors"} <= kinds


def test_options_bind_neighbours_too():
    expr, spec = ops.matmul(96, 80, 64), load_spec("cpu-avx2")
    options = ConstructOptions(epsilon=0.0, split_k=False)
    start = roller.construct(expr, spec, top_k=1, options=options)[0].program
    found = neighbour_programs(start, expr, spec, options)
    assert found and all(padded_waste(c.program) == 0 and c.program.split_k == 1 for c in found)
    wide = [c.program for c in neighbour_programs(start, expr, spec, ConstructOptions())]
    assert any(padded_waste(p) > 0 for p in wide)
