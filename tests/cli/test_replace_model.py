"""A real model saved, refused, and replaced; what lies there runs before and after."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import roller
from roller.cli.main import app

pytestmark = pytest.mark.slow


def written(path, factor):
    weights = numpy_helper.from_array(np.full((16, 8), factor, np.float32), "w")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", [4, 16]), ("y", [4, 8]))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "small", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def test_a_saved_model_is_replaced_by_force_and_only_so(tmp_path):
    out = tmp_path / "saved"

    def compiled(factor, *options):
        model = written(tmp_path / f"{factor}.onnx", factor)
        return CliRunner().invoke(app, ["compile-model", model, "--out", str(out), "-k", "1", *options])

    def answer():
        return roller.load_model(out).run({"x": np.ones((4, 16), np.float32)})["y"]

    assert compiled(1.0).exit_code == 0
    assert np.all(answer() == 16)
    assert "Add --force to replace it" in str(compiled(2.0).exception)
    assert np.all(answer() == 16)
    assert compiled(2.0, "--force").exit_code == 0
    assert np.all(answer() == 32)
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["saved"], "nothing is left beside it"
