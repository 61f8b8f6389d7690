"""Nothing in a dimension, no dimension at all, and values that are many things: inputs, outputs, constants, twice."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import KINDS, FamilyMaker


def empty(m: FamilyMaker) -> None:
    """Compute with a dimension of no elements."""
    shape = list(m.shape(m.one([1, 2, 3])))
    shape[int(m.rng.integers(len(shape)))] = 0
    x = m.value(tuple(shape), exact=True)
    op = m.one(["Relu", "Add", "MatMul", "ReduceSum", "Concat", "Softmax", "Transpose", "Reshape", "Gather", "Tile",
                "CumSum", "Expand", "Shape", "Where", "Pad", "TopK", "Split", "LayerNormalization"])  # fmt: skip
    if op == "Add":
        m.node(op, [x, m.value((1,) * len(shape), exact=True)])
    elif op == "MatMul" and len(shape) > 1:
        m.node(op, [x, m.value((shape[-1], 3), exact=True)])
    elif op == "ReduceSum" and m.opset >= 13:
        m.node(op, [x, m.integers(int(m.rng.integers(len(shape))))], keepdims=int(m.flip()))
    elif op == "Concat":
        m.node(op, [x, x, m.value(tuple(d or 2 for d in shape), exact=True)], axis=shape.index(0))
    elif op == "Reshape" and m.opset >= 14:
        m.node(op, [x, m.integers(*shape[::-1])], allowzero=1)
    elif op == "Gather" and shape[0]:
        m.node(op, [x, m.put(np.zeros((m.one([0, 2]),), np.int64))])
    elif op == "Tile":
        m.node(op, [x, m.integers(*[m.one([1, 2]) for _ in shape])])
    elif op == "Expand" and m.opset >= 8:
        m.node(op, [m.value((1,), exact=True), m.integers(*shape)])
    elif op == "Where" and m.opset >= 9:
        m.node(op, [m.put(np.zeros(tuple(shape), bool)), x, m.value((), exact=True)])
    elif op == "Pad" and m.opset >= 11:
        m.node(op, [x, m.integers(*[1] * 2 * len(shape))])
    elif op == "CumSum" and m.opset >= 11:
        m.node(op, [x, m.put(np.int64(0), constant=True)])
    elif op in ("Relu", "Transpose", "Shape"):
        m.node(op, [x])
    else:
        m.node("Softmax", [x], axis=len(shape) - 1)


def scalar(m: FamilyMaker) -> None:
    """Compute with tensors of no dimension."""
    x, y = m.value((), exact=True), m.value((), exact=True)
    op = m.one(["Add", "Concat", "Unsqueeze", "Reshape", "ReduceSum", "Expand", "Flatten", "Softplus", "Size"])
    if op == "Add":
        m.node(op, [x, y])
    elif op in ("Concat", "Unsqueeze") and m.opset >= 13:
        parts = [m.node("Unsqueeze", [n, m.integers(0)])[0] for n in (x, y)]
        (z,) = m.node("Concat", parts, axis=0)
        m.node("Squeeze", [m.node("Slice", [z, m.integers(1), m.integers(2)])[0]])
    elif op == "Reshape":
        m.node(op, [x, m.integers(*[1] * m.one([0, 1, 3]))])
    elif op == "ReduceSum":
        m.node(op, [x], keepdims=int(m.flip()))
    elif op == "Expand" and m.opset >= 8:
        m.node(op, [x, m.integers(*m.shape(2))])
    else:
        m.node("Softplus" if op not in ("Flatten", "Size") else op, [x])


def passed(m: FamilyMaker) -> None:
    """Give an input, a constant, or what another node reads as a result."""
    shape = m.shape(m.one([0, 1, 2]))
    x = m.put(m.exact(shape), constant=m.flip(0.3))
    kind = m.one(["plain", "identity", "view", "twice", "cast", "dropout"])
    if kind == "plain":
        m.extra.append(x)
    elif kind == "identity":
        (y,) = m.node("Identity", [x])
        (z,) = m.node("Identity", [y])
        m.extra += [y, z]
    elif kind == "view":
        (y,) = m.node("Reshape", [x, m.integers(-1)])
        (z,) = m.node("Reshape", [y, m.integers(1, -1)])
        m.extra += [y]
        m.node("Relu", [z])
    elif kind == "twice":
        (y,) = m.node("Neg", [x])
        m.node("Relu", [y])
        m.extra += [y]
    elif kind == "cast":
        (y,) = m.node("Cast", [x], to=KINDS["float32"])
        m.extra += [y]
    else:
        at = {} if m.opset >= 12 else {"ratio": 0.3}
        (y,) = m.node("Dropout", [x], **at)
        m.extra += [y]


def shape_arithmetic(m: FamilyMaker) -> None:
    """Compute a shape from a shape, as exporters do."""
    shape = m.shape(3)
    x = m.value(shape, exact=True, constant=False)
    (s,) = m.node("Shape", [x])
    (first,) = m.node("Gather", [s, m.put(np.asarray([0], np.int64), constant=True)])
    (target,) = m.node("Concat", [first, m.integers(-1)], axis=0)
    (y,) = m.node("Reshape", [x, target], exact=True)
    if m.flip():
        (c,) = m.node("ConstantOfShape", [s]) if m.opset >= 9 else m.node("Shape", [y])
        m.node("Cast", [c], to=KINDS["float32"])


def parts(m: FamilyMaker) -> None:
    """Split, in equal parts or not, of which some are not read."""
    shape = tuple(d + 2 for d in m.shape(m.one([1, 2, 3])))
    axis = int(m.rng.integers(len(shape)))
    x = m.value(shape, exact=True)
    cut = int(m.rng.integers(0 if m.opset >= 13 else 1, shape[axis]))
    sizes = [cut, shape[axis] - cut]
    if m.opset >= 18 and m.flip(0.4):
        count = m.one([1, 2])
        m.node("Split", [x], [True] * count, axis=axis, num_outputs=count)
    elif m.opset >= 13:
        m.node("Split", [x, m.integers(*sizes)], 2, axis=axis - (len(shape) if m.flip() else 0))
    else:
        m.node("Split", [x], 2, axis=axis, split=sizes)


FUNCTIONS = (empty, empty, scalar, passed, passed, shape_arithmetic, parts)
