"""Whole numbers: wrapping, signs of quotients and remainders, shifts, what no double holds."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import KINDS, FamilyMaker

_TYPES = ["int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64"]


def _whole(m: FamilyMaker, shape: tuple[int, ...], dtype: str, kind: str = "any") -> str:
    known = [v.name for v in m.pool if (v.shape, v.dtype) == (shape, dtype)]
    if kind == "any" and known and m.flip(0.4):
        return m.one(known)
    info = np.iinfo(dtype)
    ends = np.array([info.min, info.max, info.max - 1, 0, 1, 2, 3, 7, *([-1, -2, -7] if info.min else [])], dtype)
    found = np.where(m.rng.random(shape) < 0.5, ends[m.rng.integers(0, len(ends), shape)],
                     m.rng.integers(info.min, info.max, shape, dtype, True))  # fmt: skip
    if kind == "divisor":
        found = np.where(found == 0, 5, found)
        found = np.where(found == -1, 5, found) if info.min else found  # the quotient of the smallest is none
    if kind == "shift":
        found = m.rng.integers(0, info.bits, shape)
    return m.put(np.asarray(found, dtype))


def binary(m: FamilyMaker) -> None:
    """Combine whole numbers."""
    dtype = m.one(_TYPES[:2] * 3 + _TYPES)
    shape = m.shape(m.one([0, 1, 2]))
    other = m.one([shape, shape[-1:], ()])
    op = m.one(["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "Greater", "BitShift", "BitwiseAnd",
                "BitwiseXor", "BitwiseOr", "Pow"])  # fmt: skip
    if (op[:4] == "Bitw" and m.opset < 18) or (op in ("Mod", "BitShift") and m.opset < 11) or op == "Pow":
        op = "Add"
    a = _whole(m, shape, dtype)
    b = _whole(m, other, dtype, {"Div": "divisor", "Mod": "divisor", "BitShift": "shift"}.get(op, "any"))
    at = {"direction": m.one(["LEFT", "RIGHT"])} if op == "BitShift" else {}
    if op == "Mod":
        at = {"fmod": int(m.flip() and dtype != "int64" and dtype != "uint64")}  # ONNX Runtime's is a double's
    (y,) = m.node(op, [a, b], **at)
    if m.flip(0.3) and op not in ("Equal", "Less", "Greater"):
        m.node("Cast", [y], to=KINDS[m.one(["int64", "int32", "uint8", "bool", "float32"])])


def unary(m: FamilyMaker) -> None:
    """Change the sign, find it, invert bits."""
    dtype = m.one(["int32", "int64", "int8", "uint8"])
    ops = ["Abs", "Neg", "Sign", "Relu", "Identity", "BitwiseNot", "Clip"]
    op = m.one(ops)
    op = "Sign" if (dtype == "uint8" and op in ("Neg", "Relu")) or (op == "BitwiseNot" and m.opset < 18) else op
    op = "Abs" if op == "Sign" and m.opset < 9 else op
    op = "Abs" if (op == "Relu" and m.opset < 14) or (op == "Clip" and m.opset < 12) else op
    x = _whole(m, m.shape(m.one([0, 1, 2])), dtype)
    bounds = [m.put(np.asarray(v, dtype)) if m.flip(0.8) else "" for v in (1, 100)] if op == "Clip" else []
    m.node(op, [x, *bounds])


def casts(m: FamilyMaker) -> None:
    """Cast between widths and signs."""
    source, target = m.one(_TYPES[:4]), m.one([*_TYPES[:4], "bool", "float32", "float64"])
    (y,) = m.node("Cast", [_whole(m, m.shape(m.one([0, 1, 2])), source)], to=KINDS[target])
    if target[0] == "f" and m.flip() and source not in ("int64",):
        m.node("Cast", [y], to=KINDS["int64"])


def reduced(m: FamilyMaker) -> None:
    """Reduce, multiply, and search whole numbers."""
    dtype, shape = m.one(["int32", "int64"]), m.shape(2)
    # ONNX Runtime reduces whole numbers in floating point, and saturates.
    x = m.put(np.asarray(m.rng.integers(-50, 51, shape), dtype))
    op = m.one(["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "TopK", "MatMul", "CumSum"])
    if op == "ReduceProd":
        x = m.put(np.asarray(m.rng.integers(-3, 4, shape), dtype))
    if op == "ArgMax":
        m.node(op, [x], axis=1)
    elif op == "TopK":
        m.node(op, [x, m.integers(1)], 2)
    elif op == "MatMul":
        m.node(op, [x, _whole(m, (shape[1], m.one(m.dims)), dtype)])
    elif op == "CumSum":
        m.node(op, [x, m.put(np.int64(1), constant=True)])
    elif m.opset >= (13 if op == "ReduceSum" else 18):
        m.node(op, [x, m.integers(1)])
    else:
        m.node(op, [x], axes=[1])


def steps(m: FamilyMaker) -> None:
    """Make ranges, hot rows, triangles and identities."""
    op = m.one(["Range", "OneHot", "EyeLike", "Trilu", "Where"])
    dtype = m.one(["int64", "int32", "float32"])
    if op == "Range" and m.opset >= 11:
        start, step, count = int(m.rng.integers(-5, 6)), m.one([1, 2, -3]), m.one([0, 1, 4])
        ends = [np.asarray(v, dtype) for v in (start, start + step * count, step)]
        (r,) = m.node("Range", [m.put(e, constant=True) for e in ends])
        m.node("Add", [r, m.value((max(count, 1),) if m.flip() and count else (), dtype, exact=True)])
    elif op == "OneHot":
        depth, shape = m.one([1, 3, 5]), m.shape(m.one([0, 1, 2]))
        at = m.put(m.rng.integers(-depth - (1 if m.flip(0.3) else 0), depth + m.one([0, 1]), shape))
        m.node(op, [at, m.integers(depth), m.put(np.asarray([2, 5], dtype), constant=m.flip(0.8))],
               axis=int(m.rng.integers(-len(shape) - 1, len(shape) + 1)))  # fmt: skip
    elif op == "EyeLike":
        m.node(op, [m.value(m.shape(2), dtype, exact=True)], k=m.one([0, 1, -1, 9]))
    elif op == "Trilu" and m.opset >= 14:
        more = [m.put(np.asarray(m.one([-2, 0, 1, 8]), np.int64), constant=True)] if m.flip() else []
        m.node(op, [m.value(m.shape(m.one([2, 3])), dtype, exact=True), *more], upper=int(m.flip()))
    else:
        shape = m.shape(2)
        c = m.put(np.asarray(m.rng.random(shape) < 0.5))
        m.node("Where", [c, _whole(m, shape[-1:], "int64"), _whole(m, shape, "int64")])


FUNCTIONS = (binary, binary, binary, unary, casts, reduced, steps)
