"""Quantised networks; scales are powers of two, so that what is rounded is exact before."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker


def _scale(m: FamilyMaker, shape: tuple[int, ...] = ()) -> str:
    return m.put(np.asarray(2.0 ** m.rng.integers(-3, 2, shape), np.float32))


def _zero(m: FamilyMaker, dtype: str, shape: tuple[int, ...] = ()) -> str:
    low, high = (100, 140) if dtype == "uint8" else (-9, 10)
    return m.put(np.asarray(m.rng.integers(low, high, shape), dtype))


def _even(m: FamilyMaker, dtype: str) -> str:
    """Return the zero point of a product: ONNX Runtime rounds halves before it is added, or after."""
    return m.put(np.asarray(2 * m.rng.integers(-4, 5) + (128 if dtype == "uint8" else 0), dtype))


def _bytes(m: FamilyMaker, dtype: str, shape: tuple[int, ...], constant: bool | None = None) -> str:
    info = np.iinfo(dtype)
    return m.put(np.asarray(m.rng.integers(info.min, info.max + 1, shape), dtype), constant)


def _weights(m: FamilyMaker, dtype: str, shape: tuple[int, ...], constant: bool | None = None) -> str:
    """Return bytes of 7 bits where they have a sign: ONNX Runtime's integer operators saturate beyond without VNNI."""
    if dtype == "uint8":
        return _bytes(m, dtype, shape, constant)
    return m.put(np.asarray(m.rng.integers(-64, 64, shape), dtype), constant)


def quantise(m: FamilyMaker) -> None:
    """Quantise, and often back; halves are frequent, and so is what saturates."""
    shape = m.shape(m.one([1, 2, 3]))
    x = m.put(np.asarray(m.rng.integers(-600, 601, shape) / m.one([4, 2, 1, 64]), np.float32))
    dtype = m.one(["uint8", "int8"])
    per_axis = m.opset >= 13 and m.flip(0.4)
    axis = int(m.rng.integers(len(shape)))
    span = (shape[axis],) if per_axis else m.one([(), ()])
    at = {"axis": axis - (len(shape) if m.flip(0.4) else 0)} if per_axis else {}
    inputs = [_scale(m, span)] + ([_zero(m, dtype, span)] if m.flip(0.7) or dtype == "int8" else [])
    (q,) = m.node("QuantizeLinear", [x, *inputs], exact=True, **at)
    if m.flip(0.7):
        (y,) = m.node("DequantizeLinear", [q, *inputs], exact=True, **at)
        if m.flip():
            (y,) = m.node("Relu", [y])
        if m.flip():
            m.node(m.one(["Add", "Mul"]), [y, m.value(shape[-1:], exact=True)])


def blocked(m: FamilyMaker) -> None:
    """Quantise with a scale per block."""
    if m.opset < 21:
        raise LookupError
    rows, block, count = m.one([1, 2, 3]), m.one([1, 2, 3]), m.one([1, 2])
    x = m.put(m.exact((rows, block * count)) * 16)
    scale, zero = _scale(m, (rows, count)), _zero(m, "uint8", (rows, count))
    (q,) = m.node("QuantizeLinear", [x, scale, zero], axis=1, block_size=block)
    m.node("DequantizeLinear", [q, scale, zero], axis=1, block_size=block)


def dequantise(m: FamilyMaker) -> None:
    """Turn integers into numbers."""
    shape, dtype = m.shape(m.one([1, 2, 3])), m.one(["uint8", "int8", "int32"])
    per_axis = m.opset >= 13 and m.flip(0.4)
    axis = int(m.rng.integers(len(shape)))
    span = (shape[axis],) if per_axis else ()
    x = _bytes(m, dtype, shape) if dtype != "int32" else m.put(m.exact(shape, "int32") * 1001)
    zero = [_zero(m, dtype, span)] if dtype != "int32" and m.flip(0.7) else []
    m.node("DequantizeLinear", [x, _scale(m, span), *zero], exact=True, **({"axis": axis} if per_axis else {}))


def dynamic(m: FamilyMaker) -> None:
    """Quantise by the range of the data: at most 255 quarters, so that no quotient is near a half."""
    if m.opset < 11:
        raise LookupError
    shape = m.shape(m.one([1, 2, 3]))
    values = m.rng.integers(m.one([0, -40, -128]), m.one([128, 60, 1]), shape)
    flat = values.reshape(-1)
    flat[0] = flat[0] or 5  # of nothing but noughts, ONNX's scale is nought, ONNX Runtime's is one
    if flat.size > 1 and m.flip(0.7):
        flat[0], flat[-1] = -64, 191  # a scale that is exact
    m.node("DynamicQuantizeLinear", [m.put(np.asarray(values / 4, np.float32))], 3)


def matmul_integer(m: FamilyMaker) -> None:
    """Multiply bytes into integers; zero points per tensor, per row and per column."""
    a, b = m.one(["uint8", "int8"]), m.one(["uint8", "int8"])
    rows, k, cols = m.one(m.dims), m.one(m.dims), m.one(m.dims)
    lead = m.one([(), (), (2,)])
    x, w = _bytes(m, a, (*lead, rows, k)), _weights(m, b, (k, cols))
    inputs = [x, w]
    if m.flip(0.7):
        inputs.append(_zero(m, a, ()) if m.flip(0.8) else "")
        inputs.append(_zero(m, b, m.one([(), (1,), (cols,)])) if m.flip(0.7) else "")
        while not inputs[-1]:
            inputs.pop()
    (y,) = m.node("MatMulInteger", inputs)
    if m.flip():
        (f,) = m.node("Cast", [y], to=1)
        m.node("Mul", [f, _scale(m, ())])


def qlinear_matmul(m: FamilyMaker) -> None:
    """Multiply bytes into bytes."""
    a, b, y = m.one(["uint8", "int8"]), m.one(["uint8", "int8"]), m.one(["uint8", "int8"])
    rows, k, cols = m.one(m.dims), m.one(m.dims), m.one(m.dims)
    per = m.one([(), (1,), (cols,)])
    x, w = _bytes(m, a, (*m.one([(), (2,)]), rows, k)), _weights(m, b, (k, cols))
    out = m.put(np.asarray(2.0 ** m.rng.integers(3, 9), np.float32))
    m.node("QLinearMatMul", [x, _scale(m), _zero(m, a), w, _scale(m, per), _zero(m, b, per), out, _even(m, y)])


def convolution(m: FamilyMaker) -> None:
    """Convolve bytes: into integers, or into bytes."""
    a, b = m.one(["uint8", "uint8", "int8"]), m.one(["uint8", "int8"])
    c, group = m.one([1, 2, 4]), 1
    if m.flip(0.4):
        group = c
    out, kernel = group * m.one([1, 2, 3]), [m.one([1, 2, 3]) for _ in range(m.one([1, 2]))]
    x = _bytes(m, a, (m.one([1, 2]), c, *[m.one([3, 4, 5]) for _ in kernel]))
    w = _weights(m, b, (out, c // group, *kernel), constant=m.flip(0.8))
    at = {"group": group, "kernel_shape": kernel, "strides": [m.one([1, 2]) for _ in kernel],
          "pads": [m.one([0, 1]) for _ in range(2 * len(kernel))]}  # fmt: skip
    if m.flip(0.4):
        inputs = [x, w] + ([_zero(m, a)] if m.flip(0.7) else [])
        if len(inputs) == 3 and m.flip():
            inputs.append(_zero(m, b, m.one([(), (out,)])))
        m.node("ConvInteger", inputs, **at)
        return
    per = m.one([(), (out,)])
    scales = [m.put(np.asarray(2.0 ** m.rng.integers(3, 9), np.float32)), _even(m, a)]
    inputs = [x, _scale(m), _zero(m, a), w, _scale(m, per), _zero(m, b, per), *scales]
    if m.flip():
        inputs.append(m.put(m.rng.integers(-3000, 3000, out).astype(np.int32)))
    m.node("QLinearConv", inputs, **at)


def between(m: FamilyMaker) -> None:
    """Compute between a DequantizeLinear and a QuantizeLinear, as exporters of quantised networks write it."""
    c, out = m.one([1, 2, 3]), m.one([1, 2, 4])
    x, w = _bytes(m, "uint8", (1, c, 4, 4)), _bytes(m, "int8", (out, c, 3, 3), constant=True)
    (a,) = m.node("DequantizeLinear", [x, _scale(m), _zero(m, "uint8")])
    span = m.one([(), (out,)]) if m.opset >= 13 else ()
    (b,) = m.node("DequantizeLinear", [w, _scale(m, span), _zero(m, "int8", span)], **({"axis": 0} if span else {}))
    (y,) = m.node("Conv", [a, b], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    if m.flip():
        (y,) = m.node("Relu", [y])
    m.node("QuantizeLinear", [y, m.put(np.float32(m.one([1.0, 4.0, 32.0]))), _zero(m, "uint8")])


FUNCTIONS = (quantise, quantise, blocked, dequantise, dynamic, matmul_integer, qlinear_matmul, convolution,
             convolution, between)  # fmt: skip
