"""Indices whose remainders a condition makes look needless: both sides of a select are evaluated everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller.te.compat import te, tirx
from roller.te.emit_tvm_expressions import emit_choice


def test_a_remainder_in_a_select_keeps_every_load_inside() -> None:
    """Where ``i * 2 <= 2`` is known, ``i % 3`` is ``i``; the other lanes would read far behind the tensor."""
    x = te.placeholder((3, 64), name="X")
    big = 1 << 22

    def body(i: Any, j: Any) -> Any:
        return tirx.Select(i * 2 > 2, x[0, j], x[tirx.floormod(i, 3), j])

    kernel = roller.compile([x, te.compute((big // 64, 64), body, name="Y")], "cpu", cache=False, deterministic=True)
    values = np.arange(192, dtype=np.float32).reshape(3, 64)
    found, i = kernel(values), np.arange(big // 64)
    np.testing.assert_array_equal(found, values[np.where(i > 1, 0, i % 3)])


def test_only_what_a_condition_speaks_of_is_a_branch() -> None:
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    x = tirx.decl_buffer((4,), name="x")

    def kind(condition: Any, at: Any) -> str:
        return type(emit_choice(condition, x[at], tirx.const(0.0, "float32"))).__name__

    assert kind(i < 4, tirx.floormod(i, 4)) == "Call"
    assert kind(i < 4, 3 - tirx.floordiv(tirx.floormod(i, 8), 2)) == "Call"
    assert kind(i < 4, tirx.floormod(j, 4)) == "Select"
    assert kind(i < 4, i) == "Select"
    assert kind(x[0] < x[1], tirx.floormod(i, 4)) == "Select"
