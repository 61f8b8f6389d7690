"""Small odd expressions: prime and unit extents, odd strides, guards, groups, broadcasts, every operator.

``ODD_CASES`` lists ``(id, factory)``; a factory is a :class:`functools.partial` of a registered operator with
keyword arguments, so that a test can also compute the operator independently of its expression.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from roller.expr import TensorExpr
from roller.ops import REGISTRY

Case = tuple[str, "partial[TensorExpr]"]


def _case(label: str, op: str, **arguments: Any) -> Case:
    return f"{op}-{label}", partial(REGISTRY[op], **arguments)


_MATMUL = [
    _case("prime", "matmul", m=37, n=29, k=23),
    _case("unit", "matmul", m=1, n=1, k=1),
    _case("k1", "matmul", m=17, n=9, k=1),
    _case("row", "matmul", m=1, n=131, k=67),
    _case("column", "matmul", m=131, n=1, k=67),
    _case("tiny", "matmul", m=3, n=2, k=5),
    _case("aligned", "matmul", m=64, n=64, k=32),
    _case("ta", "matmul", m=33, n=20, k=17, transpose_a=True),
    _case("tb", "matmul", m=33, n=20, k=17, transpose_b=True),
    _case("ta-tb", "matmul", m=19, n=41, k=16, transpose_a=True, transpose_b=True),
    _case("batch", "matmul", m=13, n=11, k=7, batch=5),
    _case("batch1-tb", "matmul", m=16, n=31, k=12, batch=1, transpose_b=True),
    _case("bias-relu", "matmul", m=31, n=18, k=15, epilogue=("bias", "relu")),
    _case("batch-epilogue", "matmul", m=9, n=14, k=6, batch=3, epilogue=("bias", "gelu", "residual")),
    _case("mul-add", "matmul", m=16, n=24, k=8, epilogue=("mul", "add", "tanh")),
    _case("f16", "matmul", m=32, n=48, k=16, dtype="float16"),
    _case("f16-epilogue", "matmul", m=17, n=16, k=31, dtype="float16", epilogue=("bias", "relu")),
    _case("f16-f32", "matmul", m=16, n=16, k=16, dtype="float16", out_dtype="float32"),
    _case("i8", "matmul", m=16, n=20, k=32, dtype="int8"),
]

_CONV = [
    _case("same3", "conv2d", n=2, c=3, h=9, w=11, f=5, kh=3, kw=3, padding=1),
    _case("unit", "conv2d", n=1, c=1, h=1, w=1, f=1, kh=1, kw=1),
    _case("1x1", "conv2d", n=2, c=7, h=6, w=5, f=13, kh=1, kw=1),
    _case("1x1-s2", "conv2d", n=1, c=8, h=9, w=9, f=6, kh=1, kw=1, stride=2),
    _case("s2-p1", "conv2d", n=1, c=4, h=14, w=14, f=8, kh=3, kw=3, stride=2, padding=1),
    _case("s3", "conv2d", n=1, c=3, h=17, w=19, f=4, kh=5, kw=3, stride=3, padding=2),
    _case("d2", "conv2d", n=1, c=4, h=12, w=13, f=4, kh=3, kw=3, dilation=2, padding=2),
    _case("s-pair-d-pair", "conv2d", n=2, c=2, h=11, w=16, f=3, kh=3, kw=2, stride=(1, 3), dilation=(2, 1)),
    _case("asymmetric", "conv2d", n=1, c=3, h=8, w=7, f=6, kh=3, kw=4, padding=(0, 1, 2, 1)),
    _case("p-pair", "conv2d", n=1, c=3, h=7, w=9, f=4, kh=1, kw=5, padding=(0, 2)),
    _case("7x7-s2", "conv2d", n=1, c=3, h=20, w=20, f=8, kh=7, kw=7, stride=2, padding=3),
    _case("whole", "conv2d", n=3, c=4, h=5, w=5, f=7, kh=5, kw=5),
    _case("groups2", "conv2d", n=1, c=6, h=7, w=7, f=4, kh=3, kw=3, groups=2, padding=1),
    _case("groups3", "conv2d", n=2, c=6, h=5, w=6, f=9, kh=2, kw=2, groups=3),
    _case("groups-c", "conv2d", n=1, c=5, h=6, w=6, f=5, kh=3, kw=3, groups=5, padding=1),
    _case("nhwc", "conv2d", n=2, c=5, h=8, w=6, f=7, kh=3, kw=3, padding=1, layout="NHWC"),
    _case("nhwc-1x1", "conv2d", n=1, c=6, h=5, w=7, f=10, kh=1, kw=1, layout="NHWC", epilogue=("bias",)),
    _case("nhwc-groups", "conv2d", n=1, c=4, h=6, w=6, f=6, kh=3, kw=3, groups=2, layout="NHWC", stride=2),
    _case("nhwc-hwio", "conv2d", n=1, c=5, h=8, w=6, f=7, kh=3, kw=2, padding=1, layout="NHWC", kernel_layout="HWIO"),
    _case("nhwc-ohwi", "conv2d", n=2, c=4, h=6, w=5, f=6, kh=3, kw=3, stride=2, layout="NHWC", kernel_layout="OHWI",
          groups=2, epilogue=("bias", "relu")),
    _case("nhwc-1x1-hwio", "conv2d", n=1, c=12, h=7, w=7, f=8, kh=1, kw=1, stride=2, layout="NHWC",
          kernel_layout="HWIO"),
    _case("ohwi", "conv2d", n=1, c=3, h=7, w=6, f=5, kh=3, kw=3, kernel_layout="OHWI"),
    _case("hwio", "conv2d", n=1, c=3, h=7, w=6, f=5, kh=3, kw=3, padding=1, kernel_layout="HWIO"),
    _case("blocked-hwio", "conv2d", n=1, c=7, h=5, w=5, f=6, kh=3, kw=3, layout="NCHW4c", kernel_layout="HWIO"),
    _case("bias-relu", "conv2d", n=2, c=4, h=7, w=7, f=6, kh=3, kw=3, padding=1, epilogue=("bias", "relu")),
    _case("residual", "conv2d", n=1, c=4, h=6, w=6, f=5, kh=3, kw=3, padding=1, epilogue=("bias", "add", "silu")),
    _case("f16", "conv2d", n=1, c=8, h=6, w=6, f=8, kh=3, kw=3, padding=1, dtype="float16"),
    _case("i8", "conv2d", n=1, c=4, h=6, w=5, f=8, kh=3, kw=3, padding=1, dtype="int8"),
    _case("blocked", "conv2d", n=2, c=8, h=7, w=9, f=16, kh=3, kw=3, layout="NCHW8c"),
    _case("blocked-odd", "conv2d", n=1, c=7, h=9, w=8, f=9, kh=3, kw=3, stride=2, padding=1, layout="NCHW4c"),
    _case("blocked-c3", "conv2d", n=1, c=3, h=11, w=9, f=17, kh=5, kw=5, stride=2, padding=2, layout="NCHW16c"),
    _case("blocked-1x1", "conv2d", n=1, c=32, h=7, w=7, f=16, kh=1, kw=1, layout="NCHW16c", epilogue=("bias", "relu")),
    _case("blocked-d2", "conv2d", n=1, c=5, h=9, w=7, f=6, kh=3, kw=2, dilation=2, padding=(2, 1), layout="NCHW4c",
          epilogue=("bias", "residual", "sigmoid")),
    _case("blocked-groups2", "conv2d", n=1, c=16, h=6, w=5, f=8, kh=3, kw=3, groups=2, padding=1, layout="NCHW4c"),
    _case("blocked-groups3", "conv2d", n=1, c=6, h=5, w=6, f=6, kh=3, kw=3, groups=3, padding=1, layout="NCHW4c"),
    _case("blocked-groups-c", "conv2d", n=2, c=5, h=6, w=6, f=5, kh=3, kw=3, groups=5, stride=2, layout="NCHW8c"),
    _case("blocked-f16", "conv2d", n=1, c=20, h=4, w=4, f=24, kh=3, kw=3, padding=1, dtype="float16", layout="NCHW16c",
          epilogue=("bias", "relu")),
]  # fmt: skip

_DEPTHWISE = [
    _case("same3", "depthwise_conv2d", n=2, c=5, h=9, w=7, kh=3, kw=3, padding=1),
    _case("unit", "depthwise_conv2d", n=1, c=1, h=3, w=3, kh=3, kw=3),
    _case("5x5-s2", "depthwise_conv2d", n=1, c=4, h=13, w=11, kh=5, kw=5, stride=2, padding=2),
    _case("multiplier", "depthwise_conv2d", n=1, c=3, h=6, w=6, kh=3, kw=3, padding=1, multiplier=2),
    _case("multiplier-c1", "depthwise_conv2d", n=2, c=1, h=5, w=6, kh=2, kw=3, multiplier=3),
    _case("d2-bias", "depthwise_conv2d", n=1, c=6, h=9, w=9, kh=3, kw=3, dilation=2, epilogue=("bias", "relu6")),
    _case("nhwc", "depthwise_conv2d", n=2, c=6, h=9, w=7, kh=3, kw=3, padding=1, layout="NHWC", epilogue=("bias",)),
    _case("nhwc-hwio", "depthwise_conv2d", n=1, c=8, h=11, w=9, kh=5, kw=5, stride=2, padding=2, layout="NHWC",
          kernel_layout="HWIO"),
    _case("nhwc-ohwi", "depthwise_conv2d", n=1, c=4, h=6, w=6, kh=3, kw=3, dilation=2, padding=2, layout="NHWC",
          kernel_layout="OHWI", multiplier=2),
    _case("blocked", "depthwise_conv2d", n=2, c=16, h=9, w=7, kh=3, kw=3, padding=1, layout="NCHW8c"),
    _case("blocked-5x5-s2", "depthwise_conv2d", n=1, c=20, h=13, w=11, kh=5, kw=5, stride=2, padding=2,
          layout="NCHW16c", epilogue=("bias", "silu")),
    _case("blocked-multiplier", "depthwise_conv2d", n=1, c=5, h=6, w=6, kh=3, kw=3, multiplier=2, layout="NCHW4c"),
    _case("blocked-f16", "depthwise_conv2d", n=1, c=9, h=7, w=7, kh=3, kw=3, padding=1, dtype="float16",
          layout="NCHW16c"),
]  # fmt: skip

_POOL = [
    _case("max", "pool2d", kind="max", n=2, c=3, h=9, w=8, kh=3, kw=2, stride=2),
    _case("max-pad", "pool2d", kind="max", n=1, c=4, h=8, w=8, kh=3, kw=3, stride=2, padding=1),
    _case("max-i8", "pool2d", kind="max", n=1, c=4, h=7, w=7, kh=3, kw=3, padding=1, dtype="int8"),
    _case("avg", "pool2d", kind="avg", n=1, c=3, h=7, w=11, kh=2, kw=3),
    _case("avg-pad", "pool2d", kind="avg", n=1, c=3, h=7, w=7, kh=3, kw=3, padding=1),
    _case(
        "avg-pad-excluded",
        "pool2d",
        kind="avg",
        n=1,
        c=3,
        h=7,
        w=8,
        kh=3,
        kw=3,
        stride=2,
        padding=(1, 0, 1, 1),
        count_include_pad=False,
    ),
    _case("avg-1x1-s2", "pool2d", kind="avg", n=2, c=5, h=9, w=9, kh=1, kw=1, stride=2),
    _case("global", "pool2d", kind="avg", n=2, c=7, h=5, w=5, kh=5, kw=5),
    _case("max-relu", "pool2d", kind="max", n=1, c=2, h=6, w=6, kh=2, kw=2, stride=2, epilogue=("bias", "relu")),
    _case("nhwc-max", "pool2d", kind="max", n=2, c=6, h=9, w=8, kh=3, kw=3, stride=2, padding=1, layout="NHWC"),
    _case(
        "nhwc-avg",
        "pool2d",
        kind="avg",
        n=1,
        c=8,
        h=7,
        w=9,
        kh=2,
        kw=3,
        padding=1,
        count_include_pad=False,
        layout="NHWC",
        epilogue=("bias",),
    ),
    _case("blocked-max", "pool2d", kind="max", n=2, c=5, h=9, w=9, kh=3, kw=3, stride=2, padding=1, layout="NCHW4c"),
    _case("blocked-avg", "pool2d", kind="avg", n=1, c=16, h=7, w=9, kh=3, kw=3, padding=1, layout="NCHW8c"),
    _case(
        "blocked-excluded",
        "pool2d",
        kind="avg",
        n=1,
        c=9,
        h=7,
        w=8,
        kh=3,
        kw=3,
        stride=2,
        padding=(1, 0, 1, 1),
        count_include_pad=False,
        layout="NCHW8c",
        epilogue=("bias", "sigmoid"),
    ),
    _case(
        "blocked-f16",
        "pool2d",
        kind="max",
        n=1,
        c=16,
        h=8,
        w=8,
        kh=2,
        kw=2,
        stride=2,
        dtype="float16",
        layout="NCHW16c",
    ),
]

_LAYOUTS = [
    _case("aligned", "to_blocked", n=2, c=32, h=5, w=7),
    _case("odd", "to_blocked", n=1, c=13, h=6, w=3, block=8),
    _case("c3-f16", "to_blocked", n=1, c=3, h=8, w=8, block=16, dtype="float16"),
    _case("aligned", "from_blocked", n=2, c=32, h=5, w=7),
    _case("odd", "from_blocked", n=1, c=13, h=6, w=3, block=8),
    _case("one-block", "from_blocked", n=3, c=3, h=8, w=8, block=4),
]  # fmt: skip

#: Every unary element-wise function; parameters as a user writes them.
UNARY = (
    "identity", "relu", "relu6", "clip(-0.5, 0.75)", "leaky_relu(0.1)", "square", "reciprocal", "gelu", "gelu_tanh",
    "silu", "hardsigmoid", "hardswish", "softplus", "elu", "neg", "abs", "floor", "ceil", "exp", "expm1", "log",
    "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid",
)  # fmt: skip

#: Every binary element-wise function.
BINARY = ("add", "sub", "mul", "max", "min", "div", "pow")

_ELEMENTWISE = [
    *(_case(n.split("(")[0], "elementwise", names=n, shape=(17, 11, 3)) for n in UNARY),
    *(_case(n, "elementwise", names=n, shape=(13, 10)) for n in BINARY),
    _case("unit", "elementwise", names="relu", shape=(1, 1)),
    _case("long", "elementwise", names="relu", shape=(10007,)),
    _case("chain", "elementwise", names=("mul", "add", "gelu"), shape=(7, 3, 5)),
    _case("row", "elementwise", names=("add", "relu"), shape=(19, 23), other_shapes=((23,),)),
    _case("column", "elementwise", names="mul", shape=(19, 23), other_shapes=((19, 1),)),
    _case("outer", "elementwise", names="sub", shape=(5, 1, 7), other_shapes=((6, 1),)),
    _case("bias-add", "elementwise", names="bias_add", shape=(12, 31)),
    _case("f16", "elementwise", names=("add", "sigmoid"), shape=(33, 5), dtype="float16"),
    _case("i8", "elementwise", names="relu", shape=(9, 14), dtype="int8"),
]

_AXES: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))
_REDUCE = [
    *(_case(f"sum-{''.join(map(str, a))}", "reduce", kind="sum", shape=(5, 11, 7), axes=a) for a in _AXES),
    *(_case(f"{kind}-{''.join(map(str, a))}", "reduce", kind=kind, shape=(6, 9, 4), axes=a)
      for kind in ("mean", "max", "min", "prod") for a in ((2,), (0, 2), (0, 1, 2))),
    _case("keep", "reduce", kind="sum", shape=(5, 11, 8), axes=(-1,), keepdims=True),
    _case("keep-all", "reduce", kind="mean", shape=(5, 3), axes=(0, 1), keepdims=True, epilogue=("relu",)),
    _case("long", "reduce", kind="sum", shape=(3, 4099), axes=(1,)),
    _case("unit", "reduce", kind="max", shape=(7, 1), axes=(1,)),
    _case("f16", "reduce", kind="sum", shape=(8, 33), axes=(0,), dtype="float16"),
    _case("argmax-last", "reduce", kind="argmax", shape=(9, 13), axes=(1,)),
    _case("argmax-first", "reduce", kind="argmax", shape=(9, 13), axes=(0,), keepdims=True, out_dtype="int32"),
    _case("argmax-all", "reduce", kind="argmax", shape=(4, 6)),
]  # fmt: skip

_ROWS = [
    _case("last", "softmax", shape=(9, 101)),
    _case("axis0", "softmax", shape=(13, 6), axis=0),
    _case("axis1", "softmax", shape=(3, 10, 5), axis=1),
    _case("vector", "softmax", shape=(37,)),
    _case("f16", "softmax", shape=(4, 64), dtype="float16"),
    _case("2d", "layer_norm", shape=(7, 96), eps=1e-5),
    _case("3d-f16", "layer_norm", shape=(2, 5, 33), eps=1e-5, dtype="float16"),
    _case("2d", "rms_norm", shape=(11, 65), eps=1e-6),
    _case("vector", "rms_norm", shape=(48,), eps=1e-6, epilogue=("relu",)),
]

#: ``(id, factory)`` of every small odd expression.
ODD_CASES: list[Case] = [*_MATMUL, *_CONV, *_DEPTHWISE, *_POOL, *_LAYOUTS, *_ELEMENTWISE, *_REDUCE, *_ROWS]

#: Functions whose arguments must be positive (or whose result is huge near zero).
_POSITIVE = ("log", "log1p", "sqrt", "rsqrt", "div", "pow", "reciprocal", "prod")


def arrays_for(expr: TensorExpr, factory: partial[TensorExpr] | None = None, seed: int = 0) -> list[np.ndarray]:
    """Return random inputs of ``expr``, positive where a function of the case needs that; equal elements occur."""
    rng = np.random.default_rng(seed)
    text = str(factory.keywords) if factory is not None else ""
    positive = any(f"'{name}'" in text for name in _POSITIVE)
    out = []
    for t in expr.inputs:
        if "int" in t.dtype:
            out.append(rng.integers(-6, 7, t.shape).astype(t.dtype))
            continue
        x = rng.standard_normal(t.shape)
        x = np.abs(x) / 4 + 0.5 if positive else np.round(x * 32) / 32
        out.append(x.astype("float32" if t.dtype == "bfloat16" else t.dtype))
    return out
