"""The interpreter: results equal the reference, counts equal F and Q, and nothing is read that was not loaded."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller import ops
from roller.errors import ArtifactError, TileError
from roller.expr import Axis, Bound, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes
from roller.ops import REGISTRY
from tests.cases import ODD_CASES, arrays_for
from tests.goldens import assert_golden
from tests.offenders import every
from tests.tile import instructions as tiles
from tests.tile.instructions import Box, Compute, Points, Store, from_lists, instructions, to_lists
from tests.tile.interpreter import interpret
from tests.tile.programs import assert_interprets, forms, program, random_block

_small = st.integers(1, 5)


def _check(expr: TensorExpr, rng: random.Random, kind: str = "gpu", factory: partial[TensorExpr] | None = None) -> None:
    arrays = arrays_for(expr, factory)
    want = expr.evaluate(arrays)
    for form in forms(expr):
        assert_interprets(program(form, random_block(form, rng), kind, rng.choice((1, 1, 2, 3))), arrays, want)


def test_the_cases_cover_every_operator():
    assert {factory.func for _, factory in ODD_CASES} == set(REGISTRY.values())


@pytest.mark.parametrize(("name", "factory"), ODD_CASES, ids=[c[0] for c in ODD_CASES])
def test_every_operator_in_every_form(name, factory):
    rng = random.Random(name)
    _check(factory(), rng, rng.choice(("gpu", "cpu")), factory)


@settings(max_examples=25)
@given(
    n=st.integers(1, 3), c=_small, h=st.integers(1, 8), w=st.integers(1, 8), f=st.integers(1, 4),
    k=st.tuples(st.integers(1, 4), st.integers(1, 4)), stride=st.integers(1, 3), dilation=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 2)] * 4), layout=st.sampled_from(["NCHW", "NHWC"]), seed=st.integers(0, 1 << 16),
)  # fmt: skip
def test_conv2d_of_any_window(n, c, h, w, f, k, stride, dilation, pads, layout, seed):
    h, w = max(h, dilation * (k[0] - 1) + 1), max(w, dilation * (k[1] - 1) + 1)
    expr = ops.conv2d(n, c, h, w, f, *k, stride=stride, dilation=dilation, padding=pads, layout=layout)
    _check(expr, random.Random(seed))


@settings(max_examples=20)
@given(m=st.integers(1, 9), n=st.integers(1, 9), k=st.integers(1, 9), batch=st.none() | st.integers(1, 3),
       flips=st.tuples(st.booleans(), st.booleans()), block=st.tuples(*[st.integers(1, 10)] * 4),
       split=st.integers(1, 4))  # fmt: skip
def test_matmul_of_any_tile(m, n, k, batch, flips, block, split):
    expr = ops.matmul(m, n, k, batch=batch, transpose_a=flips[0], transpose_b=flips[1], epilogue=("bias", "relu"))
    arrays = arrays_for(expr)
    prog = program(expr, block if batch else block[1:], split_k=split)
    counts = assert_interprets(prog, arrays, expr.evaluate(arrays))
    steps = -(-k // block[3])
    parts = -(-steps // -(-steps // split))  # parts that have a step of their own
    assert counts.partial_bytes == (2 * parts * expr.anchor.output.nbytes if parts > 1 else 0)


def _stage(load: Load, tensor: Tensor, axes: tuple[Axis, ...]) -> TensorExpr:
    spatial = [a for a in axes if a.kind == "spatial"]
    out = Tensor("Y", tuple(a.extent for a in spatial), tensor.dtype)
    combiner = "sum" if len(spatial) < len(axes) else None
    return TensorExpr(
        "odd", (tensor,), (Stage(out, axes, tuple(axis_index(a.name) for a in spatial), load, combiner),), ("Y",)
    )


_I, _J, _K = Axis("i", 7), Axis("j", 5), Axis("k", 3, "reduction")
_REVERSED = Index((Term("i", 2), Term("k", -1)), 3)
ODD_ACCESSES = {
    "diagonal": (Load("X", (axis_index("i"), axis_index("i"))), (7, 7), (_I,)),
    "band": (Load("X", (axis_index("i"), Index((Term("i"), Term("k"))))), (7, 9), (_I, _K)),
    "reversed": (Load("X", (axis_index("i", -1, 6), axis_index("j", -2, 9))), (8, 10), (_I, _J)),
    "slice": (Load("X", (axis_index("i", 1, 1), axis_index("j", 3, 1))), (12, 20), (_I, _J, _K)),
    # The window's axis is as large as its largest tile: beyond that F is an upper bound for a reversed axis.
    "guarded": (
        Load("X", (_REVERSED, axis_index("j")), (Bound(_REVERSED, 0, 12),), 7.0),
        (12, 20),
        (_I, _J, Axis("k", 4, "reduction")),
    ),
    "scalar": (Load("X", ()), (), (_I, _K)),
}


@every("name", ODD_ACCESSES)
@every("size", [1, 2, 3, 4, 9])
def test_accesses_no_operator_has(name, size):
    load, shape, axes = ODD_ACCESSES[name]
    expr = _stage(load, Tensor("X", shape), axes)
    arrays = arrays_for(expr)
    assert_interprets(program(expr, (size,) * len(axes)), arrays, expr.evaluate(arrays))


def test_a_border_occupies_the_tile_but_is_never_loaded():
    """3x3 window, padding 1, on 4x4: the tile of everything is 6x6, 16 elements of it are loaded."""
    expr = ops.conv2d(n=1, c=1, h=4, w=4, f=1, kh=3, kw=3, padding=1)
    prog = program(expr, (1, 1, 4, 4, 1, 3, 3))
    _, counts = interpret(prog, arrays_for(expr))
    assert counts.footprint_bytes == 4 * (36 + 9 + 16)
    assert counts.traffic_bytes == 4 * (16 + 9 + 16)


def test_positions_a_stride_skips_are_no_part_of_the_tile():
    """1x1 window, stride 2, on 9x9: 5x5 of 81 elements; the published formula would hold all 81."""
    expr = fuse_axes(ops.conv2d(n=1, c=2, h=9, w=9, f=2, kh=1, kw=1, stride=2))
    _, counts = interpret(program(expr, (1, 5, 5, 1)), arrays_for(expr))
    assert [a.name for a in expr.axes] == ["f", "ho", "wo", "c"]
    assert counts.footprint_bytes == 4 * (25 + 1 + 25)
    assert counts.traffic_bytes == 4 * (2 * 2 * (25 + 1) + 2 * 25)


def test_a_tile_that_reaches_beyond_its_axis_loads_nothing_for_it():
    """2x2 window, stride 2, on 5 rows: row 4 is read by nobody, whatever the tile."""
    expr = ops.pool2d("max", n=1, c=1, h=5, w=4, kh=2, kw=2, stride=2)
    _, counts = interpret(program(expr, (1, 1, 3, 2, 2, 2)), arrays_for(expr))
    assert counts.traffic_bytes == 4 * (16 + 4)


def test_a_grouped_tile_holds_one_element_per_combination_of_its_axes():
    expr = forms(ops.conv2d(n=2, c=3, h=5, w=5, f=4, kh=3, kw=3, padding=1))[-1]
    assert [a.name for a in expr.axes] == ["f", "n*ho*wo", "c*kh*kw"]
    _, counts = interpret(program(expr, (4, 10, 9)), arrays_for(expr))
    assert counts.footprint_bytes == 4 * (10 * 9 + 4 * 9 + 4 * 10)


def _shrunk(step: tiles.Instruction) -> tiles.Instruction:
    """Return a Load of one element less along its last dimension or axis."""
    if isinstance(step, tiles.Load) and isinstance(step.region, Box) and step.region.ranges:
        *rest, (start, stop, gap) = step.region.ranges
        return replace(step, region=Box((*rest, (start, stop - gap, gap))))
    if isinstance(step, tiles.Load) and isinstance(step.region, Points):
        *others, (name, low, high) = step.region.axes
        return replace(step, region=replace(step.region, axes=(*others, (name, low, high - 1))))
    return step


@pytest.mark.parametrize("form", [0, 2])
def test_every_loaded_element_is_needed_and_a_missing_one_raises(form):
    expr = forms(ops.conv2d(n=2, c=4, h=5, w=6, f=3, kh=3, kw=3, padding=1))[form]
    prog = program(expr, (1, 3, 2, 6, 2, 3, 3) if form == 0 else (3, 12, 9))
    stream = list(instructions(prog))
    arrays = arrays_for(expr)
    interpret(prog, arrays, stream)
    loads = [n for n, step in enumerate(stream) if isinstance(step, tiles.Load)]
    for n in loads[:6]:
        broken = [*stream[:n], _shrunk(stream[n]), *stream[n + 1 :]]
        with pytest.raises(TileError, match="outside the loaded regions"):
            interpret(prog, arrays, broken)


def test_streams_that_lose_or_repeat_work_raise():
    expr = ops.matmul(4, 4, 4)
    prog, arrays = program(expr, (2, 4, 2)), arrays_for(expr)
    stream = list(instructions(prog))
    stores = [n for n, step in enumerate(stream) if isinstance(step, Store)]
    with pytest.raises(TileError, match="stored exactly once"):
        interpret(prog, arrays, stream[: stores[0] + 1])
    with pytest.raises(TileError, match="has not been stored"):
        interpret(prog, arrays, [s for n, s in enumerate(stream) if n != stores[0]])
    with pytest.raises(TileError, match="nothing has been computed"):
        interpret(prog, arrays, [*stream, stream[stores[0]]])
    moved = replace(stream[stores[0]], region=Box(((0, 2, 1), (0, 3, 1))))
    with pytest.raises(TileError, match="not what the output tile"):
        interpret(prog, arrays, [*stream[: stores[0]], moved])
    with pytest.raises(TileError, match="expected 2 arrays"):
        interpret(prog, arrays[:1])


def test_dropping_a_reduction_step_changes_the_result():
    """The result depends on every Compute: the comparison with the reference is not vacuous."""
    expr = ops.matmul(4, 4, 4)
    prog, arrays = program(expr, (4, 4, 2)), [np.ones((4, 4)), np.ones((4, 4))]
    stream = list(instructions(prog))
    first = next(n for n, s in enumerate(stream) if isinstance(s, Compute))
    (got,), counts = interpret(prog, arrays, [*stream[: first - 2], *stream[first + 1 :]])
    np.testing.assert_array_equal(got, np.full((4, 4), 2.0))
    assert counts.traffic_bytes == 4 * (8 + 8 + 16)


GOLDEN_PROGRAMS = {
    "matmul_4x4x2": lambda: program(ops.matmul(4, 8, 4), (4, 4, 2)),
    "matmul_ragged_bias": lambda: program(ops.matmul(5, 3, 3, epilogue=("bias", "relu")), (4, 4, 2)),
    "matmul_split_k": lambda: program(ops.matmul(2, 4, 8), (2, 4, 2), split_k=2),
    "conv2d_border": lambda: program(ops.conv2d(1, 2, 5, 5, 2, 3, 3, padding=1, stride=2), (1, 2, 2, 3, 2, 3, 3)),
    "conv2d_strided": lambda: program(fuse_axes(ops.conv2d(1, 2, 5, 5, 2, 1, 1, stride=2)), (2, 2, 3, 2)),
    "conv2d_grouped": lambda: program(forms(ops.conv2d(2, 2, 3, 3, 4, 2, 2))[-1], (4, 8, 4)),
    "softmax_rows_cpu": lambda: program(ops.softmax((3, 5)), (2, 8), "cpu"),
}


@pytest.mark.parametrize("name", GOLDEN_PROGRAMS)
def test_streams_read_as_the_goldens(name):
    prog = GOLDEN_PROGRAMS[name]()
    text = "\n".join([str(prog), *map(str, instructions(prog))])
    assert_golden(f"instructions_{name}.txt", text)


@pytest.mark.parametrize("name", GOLDEN_PROGRAMS)
def test_streams_survive_json(name):
    prog = GOLDEN_PROGRAMS[name]()
    stream = list(instructions(prog))
    again = from_lists(json.loads(json.dumps(to_lists(stream))))
    assert again == stream
    arrays = arrays_for(prog.expr)
    np.testing.assert_array_equal(interpret(prog, arrays, again)[0][0], interpret(prog, arrays)[0][0])


@pytest.mark.parametrize(
    "item",
    [
        ["Jump", "shared", "A", ["box", [[0, 1, 1]]]],
        ["Load", "shared", "A", ["ball", []]],
        ["Load", "shared", "A"],
        ["Compute", "shared", "", ["box", [[0, 1, 1]]]],
    ],
)
def test_damaged_streams_are_refused_by_position(item):
    with pytest.raises(ArtifactError, match="tile instruction 1: expected"):
        from_lists([["Load", "shared", "A", ["box", [[0, 1, 1]]]], item])
