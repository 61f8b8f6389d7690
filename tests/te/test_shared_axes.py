"""Accesses whose indices share axes: conditions that keep them inside are guards, others are refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.errors import ExprError
from roller.te.compat import analyzer_with_extents, substitute, te, tirx
from roller.te.reader import read
from tests.offenders import every

_DIV, _MOD = tirx.floordiv, tirx.floormod


def made(extents: tuple[int, ...], shape: tuple[int, ...], condition: Any, at: Any, other: float = 0.5) -> list[Any]:
    w = te.placeholder(shape, name="W")

    def body(*axes: Any) -> Any:
        return tirx.if_then_else(condition(*axes), w[at(*axes)], tirx.const(other, "float32"))

    return [w, te.compute(extents, body, name="Y")]


def meant(extents: tuple[int, ...], w: np.ndarray, condition: Any, at: Any, other: float = 0.5) -> np.ndarray:
    axes = [tirx.Var(f"a{n}", "int32") for n in range(len(extents))]
    known = analyzer_with_extents([])

    def value(e: Any, point: tuple[int, ...]) -> int:
        here = {a: tirx.const(x, "int32") for a, x in zip(axes, point, strict=True)}
        return int(known.simplify(substitute(tirx.const(e, "int32") if isinstance(e, int) else e, here)).value)

    out = np.full(extents, other, np.float32)
    holds = condition(*axes)
    index = at(*axes)
    for point in itertools.product(*map(range, extents)):
        if value(holds, point):
            out[point] = w[tuple(value(i, point) for i in (index if isinstance(index, tuple) else (index,)))]
    return out


LEGAL = {
    "diagonal": ((70,), (30, 40), lambda i: tirx.all(i >= 3, i < 33), lambda i: (i - 3, i)),
    "transposed diagonal": ((70,), (40, 30), lambda i: tirx.all(i >= 3, i < 33), lambda i: (i, i - 3)),
    "anti-diagonal": ((50,), (30, 40), lambda i: tirx.all(i >= 3, i < 33), lambda i: (i - 3, 39 - i)),
    "sum": ((20, 20), (17,), lambda i, j: tirx.all(i + j >= 2, i + j < 19), lambda i, j: i + j - 2),
    "sum of guarded axes": ((9, 9), (4,), lambda i, j: tirx.all(i < 2, j < 3), lambda i, j: i + j),
    "sum and difference": (
        (20, 20), (20, 15), lambda i, j: tirx.all(i + j < 20, i - j >= -7, i - j < 8), lambda i, j: (i + j, i - j + 7)
    ),
    "by its sum and difference": (
        (50, 50), (23,), lambda i, j: tirx.all(i + j < 40, i - j >= -7, i - j < 7), lambda i, j: i
    ),
    "scaled": ((40,), (20, 40), lambda i: tirx.all(i * 2 >= 6, i * 2 < 40), lambda i: (i - 3, i * 2)),
    "quotient and axis": ((400,), (4, 40), lambda i: _DIV(i, 10) < 4, lambda i: (_DIV(i, 10), i)),
    "remainder and axis": ((64,), (8, 20), lambda i: i < 20, lambda i: (_MOD(i, 8), i)),
    "either end": ((64,), (4,), lambda i: tirx.any(i < 4, i >= 60), lambda i: _MOD(i, 60)),
    "not in the middle": ((64,), (4,), lambda i: tirx.Not(tirx.all(i >= 4, i < 60)), lambda i: _MOD(i, 60)),
    "unequal": ((9, 3), (8,), lambda i, j: tirx.NE(i, 8), lambda i, j: i),
    "below the diagonal": ((12, 12), (12, 11), lambda i, j: j < i, lambda i, j: (i, i - j - 1)),
    "beside what says nothing": (
        (50,), (4,), lambda i: tirx.all(tirx.any(i < 1, i >= 34), i < 4), lambda i: i
    ),
}  # fmt: skip


@every("name", LEGAL)
def test_conditions_guard_indices_that_share_axes(name: str) -> None:
    extents, shape, condition, at = LEGAL[name]
    expr = read(made(extents, shape, condition, at))
    w = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(expr.evaluate([w])[0], meant(extents, w, condition, at))


@pytest.mark.parametrize("name", ["diagonal", "sum and difference", "either end", "below the diagonal"])
def test_kernels_stay_inside(name: str) -> None:
    extents, shape, condition, at = LEGAL[name]
    w = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    kernel = roller.compile(made(extents, shape, condition, at), "cpu", top_k=1, cache=False, deterministic=True)
    np.testing.assert_array_equal(kernel(w), meant(extents, w, condition, at))


ILLEGAL = {
    "diagonal": ((70,), (30, 32), lambda i: tirx.all(i >= 3, i < 33), lambda i: (i - 3, i), 1),
    "sum": ((20, 20), (16,), lambda i, j: tirx.all(i + j >= 2, i + j < 19), lambda i, j: i + j - 2, 0),
    "sum of guarded axes": ((9, 9), (3,), lambda i, j: tirx.all(i < 2, j < 3), lambda i, j: i + j, 0),
    "by its sum and difference": (
        (50, 50), (22,), lambda i, j: tirx.all(i + j < 40, i - j >= -7, i - j < 7), lambda i, j: i, 0
    ),
    "either end": ((64,), (3,), lambda i: tirx.any(i < 4, i >= 60), lambda i: _MOD(i, 60), 0),
    "either end, further": ((64,), (4,), lambda i: tirx.any(i < 4, i >= 59), lambda i: _MOD(i, 60), 0),
    "below the diagonal": ((12, 12), (12, 11), lambda i, j: j <= i, lambda i, j: (i, i - j - 1), 1),
    "of the other branch": ((70,), (30, 40), lambda i: tirx.any(i < 3, i >= 33), lambda i: (i - 3, i), 0),
}  # fmt: skip


@every("name", ILLEGAL)
def test_conditions_that_do_not_keep_all_indices_inside_are_refused(name: str) -> None:
    extents, shape, condition, at, dimension = ILLEGAL[name]
    with pytest.raises(ExprError, match=f"reads 'W' dimension {dimension} .* Guard the access"):
        read(made(extents, shape, condition, at))


def test_terms_of_one_axis_are_seen_together() -> None:
    """Alone the terms may reach from -14 to 69; together they never leave 0..55."""
    w = te.placeholder((56,), name="W")
    y = te.compute((32,), lambda i: w[_MOD(i, 8) * 3 + 48 - i * 2], name="Y")
    values, i = np.arange(56, dtype=np.float32), np.arange(32)
    np.testing.assert_array_equal(read([w, y]).evaluate([values])[0], values[i % 8 * 3 + 48 - i * 2])
    smaller = te.placeholder((55,), name="W")
    with pytest.raises(ExprError, match="reads 'W' dimension 0"):
        read([smaller, te.compute((32,), lambda i: smaller[_MOD(i, 8) * 3 + 48 - i * 2], name="Y")])


def test_a_guard_around_a_guard_counts_too() -> None:
    s = te.placeholder((6,), name="S")

    def body(i: Any, j: Any) -> Any:
        zero = tirx.const(0.0, "float32")
        inner = tirx.if_then_else(j < 3, s[_MOD(i, 60) + j], zero)
        return tirx.if_then_else(tirx.any(i < 4, i >= 60), inner, zero)

    values = np.arange(1, 7, dtype=np.float32)
    (found,) = read([s, te.compute((64, 5), body, name="Y")]).evaluate([values])
    i, j = np.indices((64, 5))
    inside = ((i < 4) | (i >= 60)) & (j < 3)
    np.testing.assert_array_equal(found, np.where(inside, values[np.where(inside, i % 60 + j, 0)], 0))
