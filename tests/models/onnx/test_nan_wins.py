"""NaN wins in maxima and minima of models, as NumPy and PyTorch have it."""

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions
from roller.models import compile_for_ranges
from tests.models.onnx.models import info, model_of

X = np.array([[1.5, np.nan, 3.0, -np.inf, np.nan, 9.0], [0.5, -4.0, np.inf, 7.0, -0.25, 7.0]], np.float32)
Y = np.array([[np.nan, 1.0, 4.0, 0.0, np.nan, -1.0], [0.0, np.nan, 1.0, np.nan, 0.0, 8.0]], np.float32)


@pytest.fixture
def small_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))


def _nodes():
    """Return nodes and what NumPy makes of their inputs."""
    node = helper.make_node
    low, high = np.float32(-1), np.float32(2)
    sixth = np.clip(X * np.float32(0.2) + np.float32(0.5), 0, 1)
    nodes = {
        "relu": (node("Relu", ["x"], ["relu"]), np.maximum(X, 0)),
        "leaky": (node("LeakyRelu", ["x"], ["leaky"], alpha=0.5), np.where(X < 0, X * np.float32(0.5), X)),
        "clip": (node("Clip", ["x", "low", "high"], ["clip"]), np.clip(X, low, high)),
        "hard": (node("HardSigmoid", ["x"], ["hard"]), sixth),
        "most": (node("Max", ["x", "y"], ["most"]), np.maximum(X, Y)),
        "least": (node("Min", ["x", "y"], ["least"]), np.minimum(X, Y)),
        "reduced": (node("ReduceMax", ["x"], ["reduced"], axes=[1], keepdims=0), X.max(axis=1)),
        "lowered": (node("ReduceMin", ["y"], ["lowered"], axes=[0], keepdims=0), Y.min(axis=0)),
        "argmax": (node("ArgMax", ["x"], ["argmax"], axis=1, keepdims=0), X.argmax(axis=1)),
        "argmin": (node("ArgMin", ["y"], ["argmin"], axis=1, keepdims=0), Y.argmin(axis=1)),
        "largest": (node("TopK", ["x", "two"], ["largest", "places"], axis=1),
                    np.array([[np.nan, np.nan], [np.inf, 7]], np.float32)),
    }  # fmt: skip
    constants = {"low": low, "high": high, "two": np.array([2], np.int64)}
    return nodes, constants


def _compiled(options=None):
    nodes, constants = _nodes()
    outputs = [info(n, helper.np_dtype_to_tensor_dtype(want.dtype), want.shape) for n, (_, want) in nodes.items()]
    model = model_of(
        [n for n, _ in nodes.values()], [info(n, shape=X.shape) for n in "xy"], outputs, constants, opset=17
    )
    session = roller.compile_model(
        model, device="cpu", options=options or ConstructOptions(top_k=1), deterministic=True
    )
    return {n: want for n, (_, want) in nodes.items()}, session.run(None, {"x": X, "y": Y})


def test_nodes_of_extrema(small_cache):
    wanted, outputs = _compiled()
    for (name, want), got in zip(wanted.items(), outputs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)


def test_without_the_option_numbers_are_the_same(small_cache):
    wanted, outputs = _compiled(ConstructOptions(top_k=1, propagate_nan=False))
    for (name, want), got in zip(wanted.items(), outputs, strict=True):
        if name in ("most", "least", "relu", "clip"):
            known = ~np.isnan(want)
            np.testing.assert_array_equal(got[known], want[known], err_msg=name)


def test_windows_with_nan(small_cache):
    """The position is that of the last NaN of a window, as PyTorch has it; without NaN that of the first maximum."""
    x = np.array([[[[1, np.nan, 2, np.nan, 5, 5], [5, 3, np.nan, 9, 5, 1]]]], np.float32)
    pool = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2], strides=[2, 2])
    outputs = [info("y", shape=(1, 1, 1, 3)), info("at", TensorProto.INT64, (1, 1, 1, 3))]
    model = model_of([pool], [info("x", shape=x.shape)], outputs, {}, opset=17)
    y, at = roller.compile_model(model, device="cpu", top_k=1, deterministic=True).run(None, {"x": x})
    np.testing.assert_array_equal(y.ravel(), [np.nan, np.nan, 5])
    assert at.ravel().tolist() == [1, 8, 4]


def test_sizes_that_vary(small_cache):
    nodes = [helper.make_node("Relu", ["x"], ["r"]),
             helper.make_node("ReduceMax", ["r"], ["y"], axes=[1], keepdims=0)]  # fmt: skip
    model = model_of(nodes, [info("x", shape=("n", 6))], [info("y", shape=("n",))], {}, opset=17)
    session = roller.compile_model(model, shapes={"x": (("n", 1, 8), 6)}, device="cpu", deterministic=True)
    for rows in (1, 2, 5):
        x = np.resize(X, (rows, 6))
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0).max(axis=1))


def test_a_model_with_ranges_is_compiled_as_the_option_says(small_cache, monkeypatch):
    seen = []
    kept = compile_for_ranges.compile_symbolic
    monkeypatch.setattr(compile_for_ranges, "compile_symbolic", lambda s, *a, **k: seen.append(s) or kept(s, *a, **k))
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = model_of(nodes, [info("x", shape=("n", 6))], [info("y", shape=("n", 6))], {}, opset=17)
    for propagate_nan in (True, False):
        options = roller.ConstructOptions(propagate_nan=propagate_nan)
        roller.compile_model(model, shapes={"x": (("n", 1, 8), 6)}, options=options, deterministic=True)
        ((open_expr, _),) = seen.pop().values()
        assert open_expr.at({"n": 3}).propagate_nan is propagate_nan


def test_quantised_nan_is_the_least_number(small_cache):
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"])
    constants = {"scale": np.float32(0.5), "zero": np.int8(3)}
    model = model_of([node], [info("x", shape=X.shape)], [info("q", TensorProto.INT8, X.shape)], constants, opset=17)
    (got,) = roller.compile_model(model, device="cpu", top_k=1, deterministic=True).run(None, {"x": X})
    assert got.tolist() == [[6, -128, 9, -128, -128, 21], [4, -5, 127, 17, 3, 17]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torch_compile(small_cache):
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")

    def extrema(x, y):
        return (
            torch.maximum(x, y), torch.minimum(x, y), torch.relu(x), x.clamp(min=0.1), torch.clamp(x, max=0.1),
            x.clamp(-1, 1), torch.clamp_max(x, 2), x.amax(1), x.argmax(1), y.argmin(1), torch.sign(x),
            torch.nn.functional.hardswish(x), torch.softmax(y, 1),
        )  # fmt: skip

    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    got = torch.compile(extrema, backend="roller", options={"top_k": 1, "deterministic": True})(x, y)
    for n, (mine, theirs) in enumerate(zip(got, extrema(x, y), strict=True)):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, equal_nan=True, msg=f"output {n}")
