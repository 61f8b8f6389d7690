"""What is no number: NaN, infinities and the sign of nought, on their way through networks."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import KINDS, FamilyMaker

_ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 1e38, -1e38, 1e-40, 0.5, -2.5, 3.0, 89.0, -110.0])


def _odd(m: FamilyMaker, shape: tuple[int, ...], dtype: str = "float32") -> str:
    """Return a value with many odd numbers; some models have no NaN, so that other things are seen."""
    known = [v.name for v in m.pool if (v.shape, v.dtype) == (shape, dtype)]
    if known and m.flip(0.4):
        return m.one(known)
    first = 0 if m.flip(0.6) else 1
    with np.errstate(over="ignore"):
        return m.put(_ODD[m.rng.integers(first, len(_ODD), shape)].astype(dtype))


def unary(m: FamilyMaker) -> None:
    """Apply functions to what is odd, and look at the sign of nought by dividing."""
    ops = ["Relu", "Neg", "Abs", "Ceil", "Floor", "Round", "Sign", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Erf",
           "Reciprocal", "Softplus", "Softsign", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "ThresholdedRelu",
           "HardSwish",
           "Atan", "Sinh", "Asinh", "Cosh", "Acosh", "Atanh", "Asin", "Acos", "Celu", "Shrink", "Mish", "Gelu",
           "Identity"]  # fmt: skip
    since = {"HardSwish": 14, "Celu": 12, "Mish": 18, "Gelu": 20, "Round": 11}
    x = _odd(m, m.shape(m.one([1, 2])))
    (y,) = m.node(m.one([o for o in ops if since.get(o, 0) <= m.opset]), [x])
    if m.flip(0.3) and not any(k in y for k in ("elu", "relu", "sign")):  # whose nought has the other sign
        m.node("Reciprocal", [y])


def binary(m: FamilyMaker) -> None:
    """Combine what is odd."""
    shape = m.shape(m.one([1, 2]))
    a, b = _odd(m, shape), _odd(m, m.one([shape, shape[-1:], ()]))
    op = m.one(["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Less", "Greater", "Equal", "LessOrEqual",
                "GreaterOrEqual", "PRelu", "Mod", "Mean", "Sum"])  # fmt: skip
    if (op == "Mod" and m.opset < 10) or (op.endswith("OrEqual") and m.opset < 12):
        op = "Max"
    (y,) = m.node(op, [a, b], **({"fmod": 1} if op == "Mod" else {}))
    if op in ("Max", "Min", "Sum", "Mean") and m.flip(0.4):
        m.node(op, [y, a, b])


def clipped(m: FamilyMaker) -> None:
    """Clip what is odd; bounds may be odd too, or the wrong way around."""
    x = _odd(m, m.shape(m.one([1, 2])))
    low, high = m.one([-1.0, 0.0, -np.inf, 2.0]), m.one([1.0, 0.0, np.inf, 6.0])
    if m.opset < 11:
        m.node("Clip", [x], min=low, max=high)
    else:
        bounds = [m.put(np.float32(v)) if m.flip(0.8) else "" for v in (low, high)]
        m.node("Clip", [x, *bounds])


def reduced(m: FamilyMaker) -> None:
    """Reduce what is odd."""
    x, axis = _odd(m, (m.one([1, 3]), m.one([1, 2, 9]))), m.one([0, 1])
    op = m.one(["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "Softmax",
                "ReduceLogSumExp", "LogSoftmax", "ReduceSumSquare"])  # fmt: skip
    # Squares overflow in float32, and not in float64; ONNX Runtime's vectors drop NaN or keep it by where it lies.
    if op in ("ReduceL2", "ReduceSumSquare", "ReduceMax", "ReduceMin"):
        odd = np.nan_to_num(_ODD, nan=7.0, posinf=np.inf, neginf=-np.inf) if op[6] == "M" else _ODD
        x = m.put(np.where(np.abs(odd) > 1e30, np.inf, odd)[m.rng.integers(0, len(_ODD), (3, 4))].astype(np.float32))
    if op.endswith("oftmax"):
        m.node(op, [x], axis=axis)
    elif m.opset >= (13 if op == "ReduceSum" else 18):
        m.node(op, [x, m.integers(axis)])
    else:
        m.node(op, [x], axes=[axis])


def windows(m: FamilyMaker) -> None:
    """Pool what is odd."""
    op = m.one(["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
    x = _odd(m, (1, 2, m.one([3, 5]), 4))
    if op.endswith("AveragePool"):  # where there is padding, its sums take an infinity beside the window for a NaN
        x = m.put(np.where(np.abs(_ODD) < 1e30, _ODD, 1)[m.rng.integers(0, len(_ODD), (1, 2, 3, 4))].astype(np.float32))
    if op.endswith("MaxPool"):  # ONNX Runtime's vectors drop NaN or keep it by where it lies, and know no -inf
        x = m.put(_ODD[m.rng.choice([1, 3, 4, 5, 6, 7, 10, 11], (1, 2, m.one([3, 5]), 4))].astype(np.float32))
    m.node(op, [x], **({"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]} if op in ("MaxPool", "AveragePool") else {}))


def chosen(m: FamilyMaker) -> None:
    """Choose, and ask what is odd."""
    shape = m.shape(m.one([1, 2]))
    a, b = _odd(m, shape), _odd(m, shape)
    op = m.one(["IsNaN", "IsInf", "Less", "Equal"])
    if op == "IsInf":
        at = {"detect_negative": int(m.flip()), "detect_positive": int(m.flip())} if m.flip() else {}
        (c,) = m.node(op, [a], **at) if m.opset >= 10 else m.node("Equal", [a, b])
    else:
        (c,) = m.node(op, [a] if op == "IsNaN" else [a, b])
    m.node("Where", [c, a, b])
    if m.flip():
        (t,) = m.node("Cast", [a], to=KINDS["bool"])
        m.node("Not", [t])


def products(m: FamilyMaker) -> None:
    """Multiply by zeros and ones what is odd."""
    x = _odd(m, (2, 3))
    w = m.put(np.asarray(m.rng.integers(0, 2, (3, 2)), np.float32))
    if m.flip():
        m.node("MatMul", [x, w])
    else:
        m.node("Gemm", [x, w], alpha=m.one([1.0, 2.0]))


def small(m: FamilyMaker) -> None:
    """Cast odd numbers to smaller ones."""
    x = _odd(m, m.shape(m.one([1, 2])))
    (y,) = m.node("Cast", [x], to=KINDS[m.one(["float16", "float64"])])
    if m.flip():
        m.node(m.one(["Relu", "Neg", "Abs"]), [y])


FUNCTIONS = (unary, unary, unary, binary, binary, clipped, reduced, windows, chosen, products, small)
