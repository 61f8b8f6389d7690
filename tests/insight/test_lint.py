"""Advice on sizes: what is told is what construction says of both kernels, and no less padding would do."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import roller
from roller.errors import ModelError, RollerError
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.worthwhile_size_padding import LEAST_GAIN
from tests.offenders import every


def chain(*sizes, rows=512, dtype="float16"):
    """Products with a relu behind each, as an ONNX model: weights ``w0``, ``w1``, ..."""
    kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    nodes, weights, last = [], [], "x"
    for n, (k, m) in enumerate(itertools.pairwise(sizes)):
        weights.append(numpy_helper.from_array(np.zeros((k, m), dtype), f"w{n}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{n}"], [f"p{n}"], name=f"product{n}"))
        nodes.append(helper.make_node("Relu", [f"p{n}"], [f"r{n}"], name=f"relu{n}"))
        last = f"r{n}"
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", kind, [rows, sizes[0]])],
        [helper.make_tensor_value_info(last, kind, [rows, sizes[-1]])],
        weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_halves_that_fit_no_transaction_are_padded_to_the_next_that_does():
    found = roller.lint(chain(2048, 2047, 2048, 2048), "a100")
    told = {str(p) for a in found.advice for p in a.pads if p.weight}
    assert "w1[0] 2047 -> 2048" in told
    assert all(a.gain >= LEAST_GAIN and a.kernel.startswith("product") for a in found.advice)
    assert not any("w2" in word for word in told)  # it aligns


def test_what_is_told_is_what_construction_says():
    spec = roller.load_spec("a100")
    found = roller.lint(chain(999, 1001, 999), spec)
    assert found.advice
    for a in found.advice:
        for seconds, expr in ((a.seconds, a.expression), (a.padded_s, a.padded)):
            assert seconds == roller.construct(expr, spec.sustained, top_k=1)[0].estimate.seconds
        assert a.share == pytest.approx(a.runs * a.seconds / found.seconds)
        saved = a.runs * (a.seconds - a.padded_s)
        assert a.model_gain == pytest.approx(found.seconds / (found.seconds - saved))
        assert a.more_flops == pytest.approx(a.padded.flops / a.expression.flops - 1)
        assert f"{a.gain:.2f}x faster predicted" in str(a)
    gains = [a.model_gain for a in found.advice]
    assert gains == sorted(gains, reverse=True)


def test_nothing_is_told_of_sizes_that_align():
    found = roller.lint(chain(1024, 1024, 1024, dtype="float32"), "v100")
    assert (found.advice, found.examined) == ((), 0)


def test_a_gain_below_the_least_is_not_told():
    assert not roller.lint(chain(999, 1001, 999), "a100", least_gain=4.0).advice


def test_together_and_one_by_one_prices_are_the_same():
    spec = roller.load_spec("t4").sustained
    exprs = [roller.ops.matmul(m, 64, 96) for m in range(8, 24)]
    together, one_by_one = KernelPricer(spec, "roller"), KernelPricer(spec, "roller")
    together.price_expressions_in_parallel(exprs)
    assert [together.price_expression(e) for e in exprs] == [one_by_one.price_expression(e) for e in exprs]


@every(
    ("arguments", "options", "message"),
    [
        ((), {"least_gain": 1}, "least_gain: expected a factor above 1, got 1"),
        ((), {"least_gain": float("nan")}, "least_gain: expected a factor above 1, got nan"),
        ((), {"least_gain": "2"}, "least_gain: expected a factor above 1, got '2'"),
        ((), {"policy": "cublas"}, "policy: expected one of"),
        ((1, 2), {}, "expected no examples beside an ONNX model, got 2"),
    ],
)
def test_what_is_asked_wrongly_is_said(arguments, options, message):
    with pytest.raises(RollerError, match=message):
        roller.lint(chain(8, 8), "a100", *arguments, **options)


def test_a_library_is_described_on_gpus_only():
    with pytest.raises(RollerError, match="expected 'roller' on cpu-avx2, got 'library'"):
        roller.lint(chain(8, 8), "cpu-avx2", policy="library")
    assert roller.lint(chain(999, 1001), "a100", policy="library").advice


def test_what_is_no_model_is_said():
    with pytest.raises(ModelError, match="expected"):
        roller.lint(b"no model", "a100")
    with pytest.raises(RollerError, match="expected"):
        roller.lint(5, "a100")


def test_a_module_needs_examples():
    class Module:
        def parameters(self):
            return ()

    with pytest.raises(RollerError, match="expected examples of the arguments of Module, got none"):
        roller.lint(Module(), "a100")
    with pytest.raises(RollerError, match="expected no examples beside an ONNX model"):
        roller.lint(lambda x: x, "a100", 3)


def test_the_verb_prints_pads_and_json(cli, tmp_path):
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain(999, 1001, 999))
    code, out, _ = cli("lint", path, "--device", "a100")
    assert code == 0 and "999 -> 1000" in out and "predicted" in out
    code, out, _ = cli("lint", path, "--device", "a100", "--json")
    data = json.loads(out)
    assert data["kind"] == "predicted" and data["advice"][0]["pads"][0]["weight"]
    path.write_bytes(chain(1024, 1024))
    code, out, _ = cli("lint", path, "--device", "a100")
    assert code == 0 and "no padding makes one of them 1.05 times as fast" in out


def test_the_verb_takes_the_shapes_of_open_inputs(cli, tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]>
    open (float16[batch, length, 999] x) => (float16[batch, length, 999] y) { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((999, 999), "float16"), "w"))
    path = tmp_path / "open.onnx"
    onnx.save(model, path)
    code, out, _ = cli("lint", path, "--device", "a100", "--shape", "x=4x128x999")
    assert code == 0 and "999 -> 1000" in out
    code, _, err = cli("lint", path, "--device", "a100", "-b", 4)
    assert code != 0 and "--shape x=4x1x999" in err and "--batch" not in err
    found = roller.lint(path, "a100", shapes={"x": (4, 128, 999)})
    assert "999 -> 1000" in str(found) and "predicted" in str(found)
    code, out, _ = cli("forecast", path, "--device", "a100", "--shape", "x=4x128x999")
    assert code == 0 and "a100" in out
    code, _, err = cli("forecast", "examples/train.py", "--device", "a100", "--shape", "x=4x128x999")
    assert code == 2 and "expected no --shape beside an entry file" in err


def test_a_torch_module_is_linted_by_the_names_of_its_parameters():
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
    module = torch.nn.Sequential(torch.nn.Linear(999, 1001), torch.nn.Dropout(), torch.nn.Linear(1001, 999)).half()
    found = roller.lint(module, "a100", torch.ones(512, 999).half())
    assert any(p.value == "0.weight" and (p.extent, p.padded) == (999, 1000) for a in found.advice for p in a.pads)
    assert found.model == "Sequential" and all(m.training for m in module.modules())
    with pytest.raises(RollerError, match="expected a module that torch"):
        roller.lint(module, "a100", torch.ones(3, 5).half())
