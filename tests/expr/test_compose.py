"""Composed stages compute what they computed one after another: random chains of movement and arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.errors import ExprError
from roller.expr import (
    Axis,
    Bound,
    Call,
    Cast,
    Const,
    Index,
    Load,
    Stage,
    Tensor,
    TensorExpr,
    Term,
    axis_index,
    transform_scalar,
)
from roller.expr.compose_stages import common_dtype_of_scalar, inline_producer
from roller.expr.index_arithmetic import (
    access_at_address,
    axis_splits_to_affine,
    compose_index,
    divide_index,
    invert_store_map,
    reshape_access,
    row_major_address,
    simplify_index,
)

SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def grid(extents: dict[str, int]) -> dict[str, np.ndarray]:
    points = np.indices(list(extents.values())).reshape(len(extents), -1)
    return dict(zip(extents, points, strict=True))


def axes_of(shape) -> tuple[Axis, ...]:
    return tuple(Axis(f"d{d}", e) for d, e in enumerate(shape))


def identity(axes) -> tuple[Index, ...]:
    return tuple(axis_index(a.name) for a in axes)


# --- indices as numbers -------------------------------------------------------------------------

TERMS = st.builds(Term, st.sampled_from("abc"), st.integers(-6, 12), st.integers(1, 6), st.integers(0, 6))
INDICES = st.builds(lambda t, c: Index(tuple(t), c), st.lists(TERMS, max_size=4), st.integers(-9, 20))
EXTENTS = st.fixed_dictionaries({n: st.integers(1, 9) for n in "abc"})


@given(INDICES, EXTENTS)
def test_a_simplified_index_has_the_same_values(index, extents):
    at = grid(extents)
    np.testing.assert_array_equal(simplify_index(index, extents)(at) + at["a"] * 0, index(at) + at["a"] * 0)


@given(INDICES, EXTENTS, st.integers(1, 12))
def test_quotient_and_remainder_are_those_of_numbers(index, extents, n):
    found = divide_index(index, n, extents)
    if found is not None:
        at = grid(extents)
        value = index(at) + at["a"] * 0
        np.testing.assert_array_equal(found[0](at) + at["a"] * 0, value // n)
        np.testing.assert_array_equal(found[1](at) + at["a"] * 0, value % n)


@given(INDICES, st.fixed_dictionaries(dict.fromkeys("ab", INDICES)), EXTENTS)
def test_composing_is_evaluating_inside(index, at, extents):
    found = compose_index(index, at, extents)
    if found is not None:
        env = grid(extents)
        inner = {n: i(env) + env["a"] * 0 for n, i in at.items()}
        expected = index({**env, **inner})
        np.testing.assert_array_equal(found(env) + env["a"] * 0, expected + env["a"] * 0)


def test_a_merged_dimension_is_read_by_its_digits_without_division():
    extents = {"s": 128, "h": 12, "d": 64}
    found = reshape_access((axis_index("s"), axis_index("h"), axis_index("d")), (128, 12, 64), (128, 768), extents)
    assert found == (axis_index("s"), Index((Term("h", 64), Term("d"))))
    back = reshape_access(found, (128, 768), (128, 12, 64), extents)
    assert back == (axis_index("s"), axis_index("h"), axis_index("d"))


def test_a_split_dimension_divides_until_its_axis_is_split():
    extents = {"k": 768}
    heads = reshape_access((axis_index("k"),), (768,), (12, 64), extents)
    assert heads == (Index((Term("k", 1, 64),)), Index((Term("k", 1, 1, 64),)))
    (cut,) = axis_splits_to_affine(heads, extents)
    assert cut.parts == (("k/1", 12), ("k/0", 64))
    digits = dict(cut.parts)
    assert [compose_index(i, {"k": cut.index}, digits) for i in heads] == [axis_index("k/1"), axis_index("k/0")]


@given(SHAPES, st.randoms())
def test_positions_in_another_shape_are_the_same_memory(shape, random):
    axes = axes_of(shape)
    extents = {a.name: a.extent for a in axes}
    other = random_shape(math.prod(shape), random)
    found = reshape_access(identity(axes), shape, other, extents)
    assert found is None or len(found) == len(other)
    if found is not None:
        at = grid(extents)
        assert all(i.range(extents)[0] >= 0 and i.range(extents)[1] < n for i, n in zip(found, other, strict=True))
        np.testing.assert_array_equal(
            row_major_address(found, other)(at) + 0 * at["d0"],
            row_major_address(identity(axes), shape)(at) + 0 * at["d0"],
        )
    assert access_at_address(row_major_address(identity(axes), shape), shape, extents) == tuple(
        Index() if a.extent == 1 else axis_index(a.name) for a in axes
    )


def random_shape(elements: int, random) -> tuple[int, ...]:
    out = []
    while elements > 1:
        n = random.choice([d for d in range(2, elements + 1) if elements % d == 0])
        out.append(n)
        elements //= n
        if random.random() < 0.2:
            out.append(1)
    return tuple(out) or (1,)


# --- stages -------------------------------------------------------------------------------------


def moved(kind: str, t: Tensor, name: str, random) -> Stage:
    """Return a random stage of movement, or of arithmetic, over ``t``."""
    axes = axes_of(t.shape)
    index, shape, guard = list(identity(axes)), list(t.shape), ()
    if kind == "transpose":
        order = random.sample(range(len(shape)), len(shape))
        shape = [t.shape[d] for d in order]
        axes = axes_of(shape)
        index = [axis_index(f"d{order.index(d)}") for d in range(len(shape))]
    elif kind == "slice":
        d = random.randrange(len(shape))
        start, step = random.randrange(t.shape[d]), random.choice([1, 1, 2, -1])
        kept = len(range(start, t.shape[d], step)) if step > 0 else start + 1
        shape[d] = kept
        axes = axes_of(shape)
        index[d] = axis_index(f"d{d}", step, start)
    elif kind == "expand":
        d, n = random.randrange(len(shape) + 1), random.choice([2, 3])
        shape.insert(d, n)
        axes = axes_of(shape)
        index = [axis_index(f"d{e + (e >= d)}") for e in range(len(t.shape))]
    elif kind == "pad":
        d, before = random.randrange(len(shape)), random.choice([0, 1, 2])
        shape[d] += before + random.choice([0, 1])
        axes = axes_of(shape)
        index[d] = axis_index(f"d{d}", 1, -before)
        guard = (Bound(index[d], 0, t.shape[d]),)
    body = Load(t.name, tuple(index), guard, 7.0 if guard else 0.0)
    if kind == "arithmetic":
        body = Call("add", (Call("mul", (body, Const(0.5))), Load(t.name, tuple(index))))
    return Stage(Tensor(name, tuple(shape), t.dtype), axes, identity(axes), body)


KINDS = st.lists(
    st.sampled_from(["transpose", "slice", "expand", "pad", "reshape", "arithmetic"]), min_size=2, max_size=5
)


def put_into(stage: Stage, producer: Stage, shape) -> Stage | None:
    """Return ``stage`` with ``producer`` in its loads, which see it in ``shape``."""
    found = [inline_producer(ld, shape, stage.extents, producer, {"x": "float32"}) for ld in stage.loads]
    if any(f is None for f in found):
        return None
    swapped = dict(zip(stage.loads, found, strict=True))
    return replace(stage, body=transform_scalar(stage.body, lambda n: swapped.get(n, n) if isinstance(n, Load) else n))


def is_valid(x: Tensor, stage: Stage) -> bool:
    """Whether a guard still says of every load that it stays inside; it cannot always, after a reshape."""
    try:
        TensorExpr("all", (x,), (stage,), (stage.name,))
    except ExprError:
        return False
    return True


@settings(max_examples=120, deadline=None)
@given(SHAPES, KINDS, st.randoms())
def test_a_chain_read_through_its_last_stage_computes_the_chain(shape, kinds, random):
    array = np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape)
    x, value = Tensor("x", shape), array
    last = moved("copy", x, "start", random)
    shown = last.output
    for n, kind in enumerate(kinds):
        if kind == "reshape":
            shown = replace(shown, shape=random_shape(math.prod(shown.shape), random))
            value = value.reshape(shown.shape)
            continue
        stage = moved(kind, shown, f"t{n}", random)
        (value,) = TensorExpr("one", (shown,), (stage,), (stage.name,)).evaluate([value])
        both = put_into(stage, last, shown.shape)
        if both is None or not is_valid(x, both):  # what does not compose is computed first; the chain starts anew
            array, x = value.astype(np.float32), Tensor("x", value.shape)
            both = moved("copy", x, f"t{n}", random)
        last, shown = both, both.output
        (found,) = TensorExpr("all", (x,), (both,), (both.name,)).evaluate([array])
        np.testing.assert_allclose(found, value, rtol=1e-6)
        if shown.elements > 2000:
            break


def test_a_guard_of_movement_goes_along_but_never_around_arithmetic():
    pad = moved_pad(Load("x", (axis_index("d0", 1, -1),), (Bound(axis_index("d0", 1, -1), 0, 4),), 7.0))
    tensors, extents = {"x": "float32"}, {"a": 4}
    inside = Load("p", (axis_index("a", 1, 1),), (Bound(axis_index("a", 1, 1), 0, 3),), 7.0)
    found = inline_producer(inside, (6,), extents, pad, tensors)
    assert isinstance(found, Load) and len(found.guard) == 2 and found.index == (axis_index("a"),)
    other = Load("p", (axis_index("a", 1, 1),), inside.guard, 0.0)
    assert inline_producer(other, (6,), extents, pad, tensors) is None, "two guards with two values"
    doubled = moved_pad(Call("add", (Load("x", (axis_index("d0"),)), Const(1.0))), 4)
    assert inline_producer(inside, (4,), extents, doubled, tensors) is None


def moved_pad(body, extent=6) -> Stage:
    return Stage(Tensor("p", (extent,)), (Axis("d0", extent),), (axis_index("d0"),), body)


def test_a_padded_slice_is_one_guarded_load():
    cut = Stage(Tensor("p", (3,)), (Axis("d0", 3),), (axis_index("d0"),), Load("x", (axis_index("d0", 1, 2),)))
    before = axis_index("a", 1, -1)
    found = inline_producer(Load("p", (before,), (Bound(before, 0, 3),)), (3,), {"a": 5}, cut, {"x": "float32"})
    assert found == Load("x", (axis_index("a", 1, 1),), (Bound(axis_index("a", 1, 1), 2, 5),))


def test_a_guard_stays_outside_of_a_conversion_whose_source_cannot_hold_what_lies_outside():
    body = Cast("float32", Load("x", (axis_index("d0"),)))
    stage, before = moved_pad(body, 3), axis_index("a", 1, -1)
    for outside, possible in ((0.5, False), (float("-inf"), False), (300.0, False), (3.0, True)):
        load = Load("p", (before,), (Bound(before, 0, 3),), outside)
        assert (inline_producer(load, (3,), {"a": 5}, stage, {"x": "uint8"}) is not None) == possible


def test_what_storing_rounds_is_still_rounded():
    stage = Stage(
        Tensor("h", (4,), "float16"), (Axis("d0", 4),), (axis_index("d0"),),
        Call("add", (Load("x", (axis_index("d0"),)), Const(1.0))),
    )  # fmt: skip
    found = inline_producer(Load("h", (axis_index("a"),)), (4,), {"a": 4}, stage, {"x": "float32"})
    assert common_dtype_of_scalar(found, {"x": "float32"}) == "float16"
    narrow = Stage(Tensor("h", (4,), "int8"), stage.axes, stage.store, stage.body)
    assert inline_producer(Load("h", (axis_index("a"),)), (4,), {"a": 4}, narrow, {"x": "int8"}) is None


def test_axes_are_found_again_from_where_they_are_stored():
    extents = {"n": 2, "c": 6, "p": 10}
    store = (axis_index("n"), Index((Term("c", 10), Term("p"))))
    assert invert_store_map(store, extents, (Index((), 1), axis_index("q", 1, 3)), {"q": 50}) is None, "carries into c"
    assert invert_store_map(store, extents, (Index((), 1), axis_index("q", 10, 3)), {"q": 6}) == {
        "n": Index((), 1), "c": axis_index("q"), "p": Index((), 3)
    }  # fmt: skip
    assert invert_store_map(store, extents, (axis_index("n"), axis_index("q")), {"n": 2, "q": 60}) == {
        "n": axis_index("n"), "c": Index((Term("q", 1, 10),)), "p": Index((Term("q", 1, 1, 10),))
    }  # fmt: skip


def test_evaluation_finds_the_digits_of_a_stored_position():
    axes = (Axis("a", 3), Axis("b", 4))
    body = Load("x", (axis_index("b"), axis_index("a")))
    stage = Stage(Tensor("y", (12,)), axes, (Index((Term("b"), Term("a", 4))),), body)
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    (found,) = TensorExpr("digits", (Tensor("x", (4, 3)),), (stage,), ("y",)).evaluate([x])
    np.testing.assert_array_equal(found, x.T.reshape(-1))
