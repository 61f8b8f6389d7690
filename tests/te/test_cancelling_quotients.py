"""Guards in which a quotient and a remainder of it cancel within a loop, which TVM cannot divide by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.expr import Index, Term
from roller.te.compat import te, tirx
from roller.te.emit_tvm_expressions import remove_opposite_remainders
from tests.offenders import every

_DIV, _MOD = tirx.floordiv, tirx.floormod
_N = 13


def _difference(j: Any) -> Any:
    """What is 0 in a loop over eight lanes, written with quotients of any kind."""
    return j // 2 - j % 8 // 2 if isinstance(j, np.ndarray) else _DIV(j, 2) - _DIV(_MOD(j, 8), 2)


@pytest.mark.parametrize(
    ("index", "bounds"),
    [
        (lambda j: j * 3 + _difference(j), (3, 22)),
        (lambda j: j * 3 - _difference(j), (0, 19)),
        (_difference, (0, 4)),
        (lambda j: j - _difference(j) + 1, (2, 9)),
    ],
)
def test_guards_of_cancelling_quotients_compile(index: Callable[[Any], Any], bounds: tuple[int, int]) -> None:
    low, high = bounds
    x = te.placeholder((high - low,), name="X", dtype="uint8")
    v = te.placeholder((_N,), name="V", dtype="float64")

    def body(i: Any, j: Any) -> Any:
        inside = tirx.all(index(j) >= low, index(j) < high)
        found = tirx.if_then_else(inside, x[index(j) - low], tirx.const(0, "uint8")).astype("float64")
        return found * tirx.Select(tirx.NE(j, 6), v[i], v[j])

    kernel = roller.compile([x, v, te.compute((_N, _N), body, name="Y")], "cpu", cache=False, deterministic=True)
    values, factors = np.arange(1, high - low + 1, dtype=np.uint8), np.arange(1, _N + 1, dtype=np.float64)
    i, j = np.indices((_N, _N))
    at = index(j)
    found = np.where((at >= low) & (at < high), values[np.clip(at - low, 0, len(values) - 1)], 0)
    np.testing.assert_array_equal(kernel(values, factors), found * np.where(j != 6, factors[i], factors[j]))


@every("terms", [
    [(1, 2, 0), (-1, 2, 4)], [(3, 1, 0), (1, 2, 0), (-1, 2, 4)], [(-1, 2, 16), (1, 2, 4)],
    [(2, 1, 8), (-2, 1, 4), (8, 4, 3)], [(1, 1, 0), (-1, 1, 2), (1, 1, 4), (-5, 4, 0)],
])  # fmt: skip
def test_terms_that_may_cancel_become_quotients(terms: list[tuple[int, int, int]]) -> None:
    index = Index(tuple(Term("i", *t) for t in terms), 5)
    found = remove_opposite_remainders(index)
    at = {"i": np.arange(-7, 200)}
    np.testing.assert_array_equal(found(at), index(at))
    signs = [(t.div, t.coef > 0) for t in found.terms]
    assert len({d for d, _ in signs}) == len(set(signs))


def test_terms_that_cannot_cancel_stay() -> None:
    for terms in ([(1, 2, 0), (1, 2, 4)], [(64, 64, 0), (1, 1, 64)], [(1, 2, 0), (-4, 8, 0)]):
        index = Index(tuple(Term("i", *t) for t in terms), 5)
        assert remove_opposite_remainders(index) is index
