"""A plan survives its way through JSON, whatever its steps are."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from roller.errors import ArtifactError
from roller_runtime.core.display import exact_repr
from roller_runtime.plan.execution_plan import Place, Plan
from roller_runtime.plan.plan_json import plan_from_dict, plan_to_dict
from roller_runtime.plan.program_steps import Call, Copy, Foreign, Join, ParallelGroup, Program, Run, Value, View


def every_step():
    run = Run("conv + relu", "k", ("x", "w"), ("a",), ("conv", "relu"))
    copy = Copy("a", "b", 2, 8, 4, 16, 0, 8)
    attributes = {"axis": 1, "axes": (0, (1, 2)), "low": -math.inf, "table": np.float32([[1, 2]]), "mode": "nearest"}
    call = Call("gather", ("b", ""), ("c",), attributes, "gather_1")
    foreign = Foreign("onnxruntime", b"\x00\xffmodel", ("c",), ("d",), ("node",))
    return (run, View("a", "v", 4), Join(("a", "b"), "j", 1), ParallelGroup(((copy,), (call, foreign))))


def test_every_kind_of_step_and_place_comes_back():
    values = {n: Value(n, (2, 0) if n == "v" else (), "bfloat16" if n == "a" else "float32") for n in "xwabcdvj"}
    constants = {"w": np.arange(6, dtype=np.float32)}
    program = Program("m", ("x",), ("d", "j"), values, constants, every_step())
    places = {"x": Place("input", 0), "w": Place("constant", name="w"), "a": Place("arena", offset_bytes=64)}
    plan = Plan(program, places, 4096, {"k": 1.5e-6})
    data = json.loads(json.dumps(plan_to_dict(plan), allow_nan=False))
    again = plan_from_dict(data, constants)
    table = again.program.steps[3].lanes[1][0].attributes["table"]
    assert table.dtype == np.float32
    assert table.tolist() == [[1, 2]]
    assert exact_repr(again) == exact_repr(plan)  # arrays have no truth value to compare by
    assert again.program.steps[3].lanes[1][1].model == b"\x00\xffmodel"
    assert json.loads(json.dumps(plan_to_dict(again))) == data


@pytest.mark.parametrize("damage", [{"values": None}, {"steps": [["nonsense", {}]]}, {"places": {"x": [1, 2, 3, 4, 5]}},
                                    {"constants": ["gone"]}])  # fmt: skip
def test_damaged_data_is_one_clear_error(damage):
    program = Program("m", ("x",), ("x",), {"x": Value("x", (1,))}, {}, ())
    data = plan_to_dict(Plan(program, {"x": Place("input", 0)}))
    with pytest.raises(ArtifactError, match=r"b/plan\.json: a field is missing or malformed"):
        plan_from_dict({**data, **damage}, {}, "b/plan.json")
