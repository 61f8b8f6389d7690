"""Networks of 16 bit numbers, of doubles, and what casts between them."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import KINDS, FamilyMaker

_UNARY = ["Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Exp", "Erf", "LeakyRelu", "Softplus", "Elu", "HardSigmoid", "Sin",
          "Gelu", "HardSwish", "Mish", "Softsign", "Selu", "Celu", "Identity"]  # fmt: skip
_SINCE = {"Gelu": 20, "HardSwish": 14, "Mish": 18, "Celu": 12}


def _dtype(m: FamilyMaker) -> str:
    """Return one dtype for a whole model."""
    found = [v.dtype for v in m.pool if v.dtype in ("float16", "bfloat16", "float64")]
    return found[0] if found else m.one(["float16", "float16", "float64", "bfloat16"])


def _small(m: FamilyMaker, shape: tuple[int, ...], dtype: str) -> str:
    return m.value(shape, dtype)


def elementwise(m: FamilyMaker) -> None:
    """Add a few element-wise nodes in a row."""
    dtype, shape = _dtype(m), m.shape(m.one([0, 1, 2, 3]))
    x = _small(m, shape, dtype)
    for _ in range(m.one([1, 2, 3])):
        if m.flip():
            op = m.one([u for u in _UNARY if _SINCE.get(u, 0) <= m.opset])
            (x,) = m.node(op, [x])
        else:
            (x,) = m.node(m.one(["Add", "Sub", "Mul"]), [x, _small(m, m.one([shape, shape[-1:], ()]), dtype)])
    if m.flip(0.3):
        m.node("Cast", [x], to=KINDS[m.one(["float32", "float16", "float64"])])


def product(m: FamilyMaker) -> None:
    """Multiply matrices, and go on."""
    dtype = _dtype(m)
    a, k, n = m.one(m.dims), m.one([*m.dims, 64]), m.one(m.dims)
    x, w = _small(m, (a, k), dtype), _small(m, (k, n), dtype)
    if m.flip():
        (y,) = m.node("Gemm", [x, w, *([_small(m, (n,), dtype)] if m.flip() else [])])
    else:
        (y,) = m.node("MatMul", [x, w])
    if m.flip():
        (y,) = m.node(m.one(["Relu", "Tanh", "Softmax"]), [y])


def convolution(m: FamilyMaker) -> None:
    """Convolve, pool."""
    dtype, c = _dtype(m), m.one([1, 2, 4])
    x = _small(m, (1, c, 5, 5), dtype)
    (y,) = m.node("Conv", [x, _small(m, (3, c, 3, 3), dtype), *([_small(m, (3,), dtype)] if m.flip() else [])],
                  kernel_shape=[3, 3], pads=[1, 1, 1, 1])  # fmt: skip
    op = m.one(["MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "GlobalMaxPool"])
    m.node(op, [y], **({"kernel_shape": [2, 2]} if op in ("MaxPool", "AveragePool") else {}))


def reduction(m: FamilyMaker) -> None:
    """Reduce rows."""
    dtype, shape = _dtype(m), m.shape(m.one([2, 3]))
    x = _small(m, (*shape, m.one([1, 5, 40])), dtype)
    op = m.one(["ReduceMean", "ReduceSum", "ReduceMax", "Softmax", "LogSoftmax", "ReduceL2", "ReduceLogSumExp",
                "LayerNormalization"])  # fmt: skip
    if op == "LayerNormalization":
        if m.opset < 17:
            raise LookupError
        m.node(op, [x, _small(m, m.shape_of(x)[-1:], dtype)], axis=-1)
    elif op in ("Softmax", "LogSoftmax"):
        m.node(op, [x], axis=-1)
    elif op == "ReduceSum" or m.opset >= 18:
        m.node(op, [x, m.integers(-1)])
    else:
        m.node(op, [x], axes=[-1])


def chosen(m: FamilyMaker) -> None:
    """Compare, choose, clip: what no rounding changes."""
    dtype, shape = _dtype(m), m.shape(m.one([1, 2]))
    a, b = m.value(shape, dtype, exact=True), m.value(shape, dtype, exact=True)
    (c,) = m.node(m.one(["Less", "Greater", "Equal"]), [a, b])
    (w,) = m.node("Where", [c, a, b], exact=True)
    bounds = [m.put(m.exact((), dtype) * 0 + v) for v in (-0.5, 0.75)]
    (w,) = m.node("Clip", [w, *bounds], exact=True)
    m.node(m.one(["Max", "Min"]), [w, b], exact=True)
    if m.flip():
        m.node("ArgMax", [w], axis=0, keepdims=0)


def casts(m: FamilyMaker) -> None:
    """Cast what no type but one holds: overflow to infinity, ties of the last bit, small numbers."""
    shape, source = m.shape(m.one([1, 2])), m.one(["float32", "float64", "float32"])
    bits = m.rng.standard_normal(shape) * 10.0 ** m.rng.integers(-9, 7, shape)
    ties = 1 + m.rng.integers(0, 64, shape) / m.one([256, 2048, 4096])
    x = m.put(np.where(m.rng.random(shape) < 0.5, bits, ties).astype(source))
    m.node("Cast", [x], to=KINDS[m.one(["float16", "float16", "bfloat16", "float64"])])


FUNCTIONS = (elementwise, elementwise, product, convolution, reduction, chosen, casts)
