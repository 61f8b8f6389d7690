"""Independent NumPy computations of the ready operators, from their arguments and not their expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])

UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "clip(-0.5, 0.75)": lambda x: np.clip(x, -0.5, 0.75),
    "leaky_relu(0.1)": lambda x: np.where(x > 0, x, 0.1 * x),
    "square": np.square,
    "reciprocal": lambda x: 1 / x,
    "gelu": lambda x: x / 2 * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "neg": lambda x: -x,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum, "div": np.divide,
    "pow": np.power, "bias_add": np.add, "residual": np.add,
}  # fmt: skip

Arrays = Sequence[np.ndarray]


def _pair(v: Any) -> tuple[int, int]:
    return v if isinstance(v, tuple) else (v, v)


def _pad(x: np.ndarray, padding: Any, value: float) -> np.ndarray:
    if isinstance(padding, tuple) and len(padding) == 4:
        top, bottom, left, right = padding
    else:
        (top, left) = (bottom, right) = _pair(padding)
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def _windows(x: np.ndarray, kernel: tuple[int, int], stride: Any, dilation: Any = 1) -> np.ndarray:
    """``(n, c, ho, wo, kh, kw)`` view of the windows of a padded NCHW array."""
    (sh, sw), (dh, dw), (kh, kw) = _pair(stride), _pair(dilation), kernel
    view = np.lib.stride_tricks.sliding_window_view(x, (dh * (kh - 1) + 1, dw * (kw - 1) + 1), axis=(2, 3))
    return view[:, :, ::sh, ::sw, ::dh, ::dw]


def matmul(a: Arrays, *, transpose_a: bool = False, transpose_b: bool = False, **_: Any) -> np.ndarray:
    left = np.swapaxes(a[0], -1, -2) if transpose_a else a[0]
    right = np.swapaxes(a[1], -1, -2) if transpose_b else a[1]
    return left @ right


def conv2d(
    a: Arrays, *, kh: int, kw: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    layout: str = "NCHW", kernel_layout: str = "OIHW", **_: Any,
) -> np.ndarray:  # fmt: skip
    x = a[0].transpose(0, 3, 1, 2) if layout == "NHWC" else a[0]
    weights = _oihw(a[1], kernel_layout)
    windows = _windows(_pad(x, padding, 0), (kh, kw), stride, dilation)
    parts = [
        np.einsum("nchwyx,fcyx->nfhw", part, weight)
        for part, weight in zip(np.split(windows, groups, 1), np.split(weights, groups, 0), strict=True)
    ]
    out = np.concatenate(parts, 1)
    return out.transpose(0, 2, 3, 1) if layout == "NHWC" else out


def _oihw(weights: np.ndarray, layout: str) -> np.ndarray:
    return weights.transpose([layout.index(letter) for letter in "OIHW"])


def depthwise_conv2d(
    a: Arrays, *, kh: int, kw: int, stride: Any = 1, padding: Any = 0, dilation: Any = 1, multiplier: int = 1,
    layout: str = "NCHW", kernel_layout: str = "OIHW", **_: Any,
) -> np.ndarray:  # fmt: skip
    x = a[0].transpose(0, 3, 1, 2) if layout == "NHWC" else a[0]
    windows = _windows(_pad(np.repeat(x, multiplier, axis=1), padding, 0), (kh, kw), stride, dilation)
    out = np.einsum("nchwyx,cyx->nchw", windows, _oihw(a[1], kernel_layout)[:, 0])
    return out.transpose(0, 2, 3, 1) if layout == "NHWC" else out


def pool2d(
    a: Arrays, *, kind: str, kh: int, kw: int, stride: Any = 1, padding: Any = 0, count_include_pad: bool = True,
    layout: str = "NCHW", **_: Any,
) -> np.ndarray:  # fmt: skip
    x = a[0]
    if layout == "NHWC":
        plain = pool2d([x.transpose(0, 3, 1, 2)], kind=kind, kh=kh, kw=kw, stride=stride, padding=padding,
                       count_include_pad=count_include_pad)  # fmt: skip
        return plain.transpose(0, 2, 3, 1)
    if kind == "max":
        return _windows(_pad(x.astype(np.float64), padding, -np.inf), (kh, kw), stride).max((-1, -2))
    total = _windows(_pad(x, padding, 0), (kh, kw), stride).sum((-1, -2))
    count = _windows(_pad(np.ones_like(x), padding, 1 if count_include_pad else 0), (kh, kw), stride).sum((-1, -2))
    return total / count


def elementwise(a: Arrays, *, names: Any, **_: Any) -> np.ndarray:
    value, rest = a[0], iter(a[1:])
    for name in (names,) if isinstance(names, str) else names:
        value = UNARY[name](value) if name in UNARY else BINARY[name](value, next(rest))
    return value


def reduce(a: Arrays, *, kind: str, axes: Any = None, keepdims: bool = False, **_: Any) -> np.ndarray:
    if kind == "argmax":
        axis = axes[0] if axes is not None else None
        return np.argmax(a[0], axis=axis, keepdims=keepdims)
    return getattr(np, kind)(a[0], axis=axes, keepdims=keepdims)


def softmax(a: Arrays, *, axis: int = -1, **_: Any) -> np.ndarray:
    e = np.exp(a[0])
    return e / e.sum(axis, keepdims=True)


def layer_norm(a: Arrays, *, eps: float, **_: Any) -> np.ndarray:
    x, gamma, beta = a[:3]
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gamma + beta


def rms_norm(a: Arrays, *, eps: float, **_: Any) -> np.ndarray:
    return a[0] / np.sqrt(np.mean(a[0] ** 2, -1, keepdims=True) + eps) * a[1]


def to_blocked(a: Arrays, *, c: int, block: int = 16, **_: Any) -> np.ndarray:
    n, _c, h, w = a[0].shape
    full = np.pad(a[0], ((0, 0), (0, -c % block), (0, 0), (0, 0)))
    return full.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2)


def from_blocked(a: Arrays, *, c: int, **_: Any) -> np.ndarray:
    n, _co, h, w, _ci = a[0].shape
    return a[0].transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c]


def _compute_blocked(op: str, keywords: dict[str, Any], arrays: Arrays, block: int) -> np.ndarray:
    """Compute in NCHW what channels in blocks hold; only a pooling without an epilogue pools the tail too."""
    source = arrays[0].shape[1] * block if op == "pool2d" and not keywords.get("epilogue") else keywords["c"]
    out_channels = keywords.get("f", source * keywords.get("multiplier", 1))
    plain = [from_blocked([arrays[0]], c=source), *arrays[1:]]
    plain[1:] = [from_blocked([x], c=out_channels) if x.ndim == 5 else x for x in plain[1:]]
    out = compute(op, {**keywords, "layout": "NCHW"}, plain)
    return to_blocked([out], c=out_channels, block=block)


def compute(op: str, keywords: dict[str, Any], arrays: Arrays) -> np.ndarray:
    """Compute the operator and its epilogue in float64 (integers in int64)."""
    blocked = re.fullmatch(r"NCHW(\d+)c", keywords.get("layout", ""))
    if blocked:
        return _compute_blocked(op, keywords, arrays, int(blocked[1]))
    wide = [a.astype(np.int64 if np.issubdtype(a.dtype, np.integer) else np.float64) for a in arrays]
    steps = keywords.get("epilogue", ())
    operands = sum(1 for s in steps if s == "bias" or s in BINARY)
    out = globals()[op](wide, **{k: v for k, v in keywords.items() if k != "epilogue"})
    rest = iter(wide[len(wide) - operands :])
    for step in steps:
        if step == "bias":
            bias = next(rest)
            channel_first = op in ("conv2d", "depthwise_conv2d", "pool2d") and keywords.get("layout") != "NHWC"
            out = out + (bias[:, None, None] if channel_first else bias)
        else:
            out = UNARY[step](out) if step in UNARY else BINARY[step](out, next(rest))
    return np.asarray(out)
