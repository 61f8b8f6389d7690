"""Accesses that the conditions around them keep inside their tensors, however these are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.errors import ExprError
from roller.te.compat import analyzer_with_extents, substitute, te, tirx
from roller.te.reader import read

_N = 64


def _chosen(condition: Callable[[Any], Any], inside_holds: bool, shift: int = 0) -> list[Any]:
    z, s = te.placeholder((_N,), name="Z"), te.placeholder((4,), name="S")

    def body(i: Any) -> Any:
        sides = (s[i - shift], z[i]) if inside_holds else (z[i], s[i - shift])
        return tirx.if_then_else(condition(i), *sides)

    return [z, s, te.compute((_N,), body, name="Y")]


@pytest.mark.parametrize(
    ("condition", "holds", "shift"),
    [
        (lambda i: tirx.any(i < 1, i >= 4), False, 0),
        (lambda i: tirx.any(i < 10, i > 13), False, 10),
        (lambda i: tirx.Not(tirx.all(i >= 10, i < 14)), False, 10),
        (lambda i: tirx.Not(tirx.any(i < 10, i >= 14)), True, 10),
        (lambda i: tirx.any(i.equal(1), i.equal(3)), True, 0),
        (lambda i: tirx.any(tirx.all(i >= 10, i < 12), i.equal(13)), True, 10),
        (lambda i: tirx.any(i < 10, i >= 14, tirx.floormod(i, 2).equal(0)), False, 10),
        (lambda i: i != 2, False, 0),
    ],
)
def test_conditions_guard_what_they_imply(condition: Callable[[Any], Any], holds: bool, shift: int) -> None:
    expr = read(_chosen(condition, holds, shift))
    z, s = np.arange(_N, dtype=np.float32), -1 - np.arange(4, dtype=np.float32)
    i = tirx.Var("i", "int32")

    def truth(n: int) -> bool:
        return bool(
            int(analyzer_with_extents([]).simplify(substitute(condition(i), {i: tirx.const(n, "int32")})).value)
        )

    meant = np.array([s[n - shift] if truth(n) == holds else z[n] for n in range(_N)])
    np.testing.assert_array_equal(expr.evaluate([z, s])[0], meant)
    np.testing.assert_array_equal(roller.compile(expr, "cpu", cache=False, deterministic=True)(z, s), meant)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (lambda i: tirx.any(i < 1, i >= 5), False),  # one too far
        (lambda i: tirx.all(i < 1, i >= 0), False),
        (lambda i: tirx.any(i < 4, i > 60), True),
        (lambda i: tirx.any(i < 4, tirx.floormod(i, 2).equal(0)), True),
    ],
)
def test_conditions_that_do_not_keep_an_access_inside_are_refused(condition: Callable[[Any], Any], holds: bool) -> None:
    with pytest.raises(ExprError, match="reads 'S' dimension 0"):
        read(_chosen(condition, holds))
