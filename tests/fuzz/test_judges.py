"""The judges themselves: planted faults are found, what rounding may do is allowed, guard pages guard."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from hypothesis import given

from tests.fuzz import run
from tests.fuzz.arrays import Guarded, inputs_of
from tests.fuzz.cases import strategy
from tests.fuzz.draw import QUICK, expressions
from tests.fuzz.interpret import Interval, Invalid, difference, interpret
from tests.fuzz.language import live
from tests.fuzz.verdict import NOT_DRAWN, OK, WRONG, Verdict, refusal


def stage(body, axes=(("i", 4),), reduce=(), combine=None, name="Y"):
    return {
        "name": name,
        "axes": [list(a) for a in axes],
        "reduce": [list(r) for r in reduce],
        "combine": combine,
        "body": body,
    }


def one(body, inputs, **more):
    return {"inputs": inputs, "stages": [stage(body, **more)], "outputs": ["Y"]}


def test_a_load_is_made_where_its_conditions_hold_and_nowhere_else():
    load = ["load", "X", [["-", "i", 1]]]
    e = one(["choose", "if_then_else", ["ge", "i", 1], load, ["const", 9.0, "float32"]], [["X", [3], "float32"]])
    got = interpret(e, {"X": np.float32([1, 2, 3])})["Y"]
    assert difference(np.float32([9, 1, 2, 3]), got, "float32") == ""
    assert "first [2]" in difference(np.float32([9, 1, 1, 3]), got, "float32")
    with pytest.raises(Invalid):
        interpret(one(load, [["X", [3], "float32"]]), {"X": np.float32([1, 2, 3])})


def test_rounding_is_allowed_and_no_more():
    e = one(["load", "X", ["i", "r"]], [["X", [4, 100], "float32"]], reduce=[("r", 100)], combine="sum")
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    expected = interpret(e, {"X": x})["Y"]
    assert difference(x.sum(1), expected, "float32") == ""
    assert difference(x.sum(1) + np.float32(1e-3), expected, "float32") != ""


def test_comparisons_that_rounding_may_turn_allow_both_branches():
    third = ["call", "div", ["load", "X", ["i"]], ["const", 3.0, "float32"]]
    less = ["less", third, ["const", 1 / 3, "float32"]]
    one_, two = ["const", 1.0, "float32"], ["const", 2.0, "float32"]
    e = one(["choose", "Select", less, one_, two], [["X", [4], "float32"]])
    got = interpret(e, {"X": np.float32([0, 1, 2, 3])})["Y"]
    assert got.low.tolist() == [1, 1, 2, 2]
    assert got.high.tolist() == [1, 2, 2, 2]


def test_small_integers_wrap():
    e = one(["call", "mul", ["load", "X", ["i"]], ["load", "X", ["i"]]], [["X", [4], "int8"]])
    got = interpret(e, {"X": np.int8([1, 12, -12, 100])})["Y"]
    assert got.low.tolist() == [1, -112, -112, 16]
    assert difference(np.int8([1, -112, -112, 16]), got, "int8") == ""


def test_nan_in_an_input_frees_only_what_reads_it():
    e = one(["load", "X", [["+", "i", 1]]], [["X", [5], "float32"]])
    expected = interpret(e, {"X": np.float32([np.nan, 1, 2, 3, np.nan])})["Y"]
    assert difference(np.float32([1, 2, 3, 7]), expected, "float32") == ""
    assert difference(np.float32([1, 2, np.nan, 7]), expected, "float32") != ""


def test_integers_are_compared_exactly():
    expected = Interval.exact(np.int64([2**53 + 1]))
    assert difference(np.int64([2**53]), expected, "int64") != ""


def test_what_no_output_needs_is_dropped():
    unused = stage(["load", "Z", ["i"]], name="T")
    e = {
        "inputs": [["X", [4], "int8"], ["Z", [4], "int8"]],
        "stages": [unused, stage(["load", "X", ["i"]])],
        "outputs": ["Y"],
    }
    assert live(e) == one(["load", "X", ["i"]], [["X", [4], "int8"]])


@pytest.mark.parametrize("at_end", [True, False])
def test_pages_around_an_array_are_protected(at_end):
    def touch(offset):
        g = Guarded((10,), "float32", at_end)
        g.protect()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            wide = np.lib.stride_tricks.as_strided(g.array, (1,), (4,))
            pointer = wide.__array_interface__["data"][0] + 4 * offset
            import ctypes

            ctypes.c_float.from_address(pointer).value  # noqa: B018
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert touch(9) == 0
    assert touch(10 if at_end else -1) == -signal.SIGSEGV


@given(expressions(QUICK))
def test_what_is_drawn_reads_no_tensor_outside_it(e):
    arrays = inputs_of(e["inputs"], 0, False)
    found = interpret(e, arrays)
    assert set(found) == set(e["outputs"])


@given(strategy("operators", QUICK))
def test_every_parameter_of_every_operator_is_drawn(case):
    import inspect

    from roller.ops import REGISTRY

    assert set(case["arguments"]) == set(inspect.signature(REGISTRY[case["operator"]]).parameters)


def test_refusals_are_told_from_failures():
    from roller.errors import BuildError, ExprError

    assert refusal(ExprError("matmul: expected 3, got 4. Pass 3."), "operator").kind == "refused"
    assert refusal(BuildError("lower: LLVM ERROR: something.cc:12"), "lower").kind == "unclear refusal"
    assert refusal(ExprError("x" * 5000), "operator").kind == "unclear refusal"
    assert refusal(KeyError("a"), "lower").kind == "foreign exception"
    assert (
        Verdict("wrong result", "output 'Y': 3 of 4").signature
        == Verdict("wrong result", "output 'Z': 7 of 9").signature
    )


@pytest.mark.parametrize("kind", [OK, WRONG])
def test_a_case_is_judged_however_long_it_took_to_draw(monkeypatch, kind):
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(run.time, "monotonic", lambda: float(next(clock)))  # a quarter of an hour between two looks

    class FixedWorker:
        judged = 0

        def judge(self, case):
            self.judged += 1
            return Verdict(kind, "output 'Y': 3 of 4" if kind == WRONG else "")

    worker = FixedWorker()
    (*_, found) = run.explore(worker, "calls", range(1, 9), seed=3, limits="quick")
    assert sum(found.verdicts.values()) == 8 and found.verdicts[kind] + found.verdicts[NOT_DRAWN] == 8
    assert found.verdicts[kind] >= 6 and len(found.cases) == (kind == WRONG)
    assert worker.judged >= found.verdicts[kind]
