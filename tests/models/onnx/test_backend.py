"""ONNX's own node tests, by evaluation: reading, lowering and partition compute what the suite expects, or refuse."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.onnx_backend import RollerBackend, parameters
from benchmarks.onnx_coverage import PASSED, WRONG, verdicts
from roller.errors import ModelError
from tests.models.onnx.models import FLOAT, INT64, model_of

DOCS = Path(__file__).resolve().parents[3] / "docs"


def document(found):
    spec = importlib.util.spec_from_file_location("onnx_operators", DOCS / "onnx_operators.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.PATH.read_text(), module.document(found)


# One test, since collecting the suite takes longer than judging it.
def test_node_tests_pass_or_are_refused_with_a_reason_and_the_document_says_which():
    found = list(verdicts(evaluated=True))
    floats = [v for v in found if v.float32]
    assert len(floats) > 1000
    assert [(v.name, v.reason) for v in found if v.outcome == WRONG] == []
    assert [v.name for v in found if v.outcome != PASSED and not v.reason] == []
    assert sum(v.outcome == PASSED for v in floats) >= len(floats) / 2
    held, made = document(found)
    assert held == made, "run `python docs/onnx_operators.py`"


def test_a_shape_that_is_an_input_is_known_from_the_first_run():
    reshape = model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, [2, 3]), ("shape", INT64, [1])],
        [("y", FLOAT, None)],
    )
    prepared = RollerBackend.prepare(reshape, evaluated=True)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = prepared.run([x, np.array([6])])
    assert y.shape == (6,)
    (y,) = prepared.run([x, np.array([-1])])
    assert y.tolist() == x.ravel().tolist()


def test_data_are_no_parameters():
    gather = model_of(
        [helper.make_node("Unique", ["x"], ["u"]), helper.make_node("Gather", ["u", "i"], ["y"])],
        [("x", FLOAT, [4]), ("i", INT64, [2])],
        [("y", FLOAT, [2])],
    )
    feeds = {"x": np.ones(4, np.float32), "i": np.array([0, 0])}
    assert list(parameters(gather, feeds)) == ["i"]
    with pytest.raises(ModelError, match="Unique"):
        RollerBackend.run_model(gather, list(feeds.values()), evaluated=True)


def test_other_devices_are_refused():
    relu = model_of([helper.make_node("Relu", ["x"], ["y"])], [("x", 1, [2])], [("y", 1, [2])])
    assert not RollerBackend.supports_device("CUDA:0")
    with pytest.raises(ModelError, match="CPU"):
        RollerBackend.prepare(relu, "CUDA:0")
    assert isinstance(relu, onnx.ModelProto)
