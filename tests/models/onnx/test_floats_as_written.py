"""Floating-point arithmetic of models, as ONNX and PyTorch have it: roundings, NaN, infinities, signs of zeros."""

import numpy as np
import pytest
from onnx import helper

import roller
from tests.models.onnx.models import info, model_of

MAGIC = np.float32(12582912)
X = np.array([1.3, 2.7, -3.6, 0.2, np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, 1e-40, -3e38], np.float32)


def assert_equal_with_signs(got, want):
    np.testing.assert_array_equal(got, want)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@pytest.fixture
def small_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path))


def test_a_model_computes_what_is_written(small_cache):
    node, zero = helper.make_node, np.float32(0)
    nodes = [
        node("Add", ["x", "magic"], ["sum"]), node("Sub", ["sum", "magic"], ["rounded"]),
        node("Equal", ["x", "x"], ["known"]), node("Where", ["known", "x", "zero"], ["kept"]),
        node("Sub", ["x", "x"], ["gone"]), node("Div", ["x", "zero"], ["beyond"]),
        node("Mul", ["x", "zero"], ["nothing"]), node("Add", ["x", "zero"], ["positive"]),
        node("Mul", ["x", "large"], ["over"]), node("Mul", ["over", "small"], ["back"]),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        large, small = np.float32(1e38), np.float32(1e-38)
        want = {
            "rounded": (X + MAGIC) - MAGIC, "kept": np.where(X == X, X, zero), "gone": X - X, "beyond": X / zero,
            "nothing": X * zero, "positive": X + zero, "back": (X * large) * small,
        }  # fmt: skip
    constants = {"magic": MAGIC, "zero": zero, "large": large, "small": small}
    model = model_of(nodes, [info("x", shape=X.shape)], [info(n, shape=X.shape) for n in want], constants, opset=17)
    outputs = roller.compile_model(model, device="cpu", top_k=1).run(None, {"x": X})
    for name, got in zip(want, outputs, strict=True):
        assert_equal_with_signs(got, want[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torch_compile_computes_what_is_written(small_cache):
    torch = pytest.importorskip("torch", reason="PyTorch is an optional extra: pip install 'roller[torch]'")
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript: pip install 'roller[torch]'")
    from roller.models.torch.backend import roller_backend

    def written(x):
        total = x + 0.1
        part = total - x
        error = (x - (total - part)) + (0.1 - part)
        return (x + 12582912) - 12582912, x != x, error, x - x, x / 0.0, torch.nanmean(x.reshape(3, 4), 1)

    x = torch.from_numpy(X)
    torch._dynamo.reset()
    fast = torch.compile(written, backend=roller_backend, dynamic=False, options={"progress": False, "top_k": 1})
    with torch.no_grad():
        (*got, mean), (*want, right_mean) = fast(x), written(x)
    for found, right in zip(got, want, strict=True):
        np.testing.assert_array_equal(found.numpy(), right.numpy())
    np.testing.assert_allclose(mean.numpy(), right_mean.numpy(), rtol=1e-6)  # a sum in another order
    torch._dynamo.reset()
