"""Operators as earlier operator sets had them, by all sets."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker


def pool(m: FamilyMaker) -> None:
    """Pool with ceilings, dilations, padding that counts or not, and by itself."""
    rank = m.one([1, 2, 2, 3])
    x = m.value((m.one([1, 2]), m.one([1, 3]), *[m.one([4, 5, 7]) for _ in range(rank)]), exact=True)
    op = m.one(["MaxPool", "AveragePool", "LpPool"])
    kernel = [m.one([1, 2, 3]) for _ in range(rank)]
    at: dict = {"kernel_shape": kernel, "strides": [m.one([1, 2, 3]) for _ in range(rank)]}
    if m.flip(0.3):
        at["auto_pad"] = m.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        at["pads"] = [int(m.rng.integers(0, k)) for k in kernel * 2]
    if op == "AveragePool" and m.flip():
        at["count_include_pad"] = 1
    if m.opset >= (18 if op == "LpPool" else 10) and m.flip(0.4):
        at["ceil_mode"] = 1
    since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[op]
    # ONNX Runtime's own padding forgets dilations, and so its shapes are not those of ONNX.
    if m.opset >= since and m.flip(0.4) and at.get("auto_pad", "VALID") == "VALID":
        at["dilations"] = [m.one([1, 2]) for _ in range(rank)]
    if op == "LpPool":
        at["p"] = m.one([1, 2, 3])
    both = op == "MaxPool" and m.opset >= 8 and m.flip(0.3)
    m.node(op, [x], 2 if both else 1, exact=op == "MaxPool", **at, **({"storage_order": 0} if both else {}))


def transposed(m: FamilyMaker) -> None:
    """Convolve the other way around."""
    rank, group = m.one([1, 2, 2, 3]), m.one([1, 1, 2])
    c, out = group * m.one([1, 2]), m.one([1, 2])
    kernel = [m.one([1, 2, 3]) for _ in range(rank)]
    strides = [m.one([1, 2, 3]) for _ in range(rank)]
    at: dict = {"group": group, "kernel_shape": kernel, "strides": strides}
    if m.flip(0.4):
        at["dilations"] = [m.one([1, 2]) for _ in range(rank)]
    if m.flip(0.4):
        at["output_padding"] = [int(m.rng.integers(0, s)) for s in strides]
    if m.flip(0.2):
        at["auto_pad"] = m.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif m.flip():
        at["pads"] = [m.one([0, 1]) for _ in range(2 * rank)]
    x = m.value((m.one([1, 2]), c, *[m.one([2, 3, 4]) for _ in range(rank)]))
    inputs = [x, m.value((c, out, *kernel), constant=m.flip(0.8))] + ([m.value((out * group,))] if m.flip() else [])
    m.node("ConvTranspose", inputs, **at)


def convolution(m: FamilyMaker) -> None:
    """Convolve with padding that is found by itself, in one to three dimensions."""
    rank, group = m.one([1, 2, 3]), m.one([1, 1, 2, 3])
    c = group * m.one([1, 2])
    kernel = [m.one([1, 2, 3]) for _ in range(rank)]
    at: dict = {"group": group, "strides": [m.one([1, 2]) for _ in range(rank)]}
    if m.flip(0.7):
        at["kernel_shape"] = kernel
    if m.flip():
        at["auto_pad"] = m.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif m.flip():
        at["dilations"] = [m.one([1, 2]) for _ in range(rank)]
    x = m.value((m.one([1, 2]), c, *[m.one([5, 6]) for _ in range(rank)]))
    w = m.value((group * m.one([1, 2]), c // group, *kernel), constant=m.flip(0.8))
    m.node("Conv", [x, w, *([m.value(m.shape_of(w)[:1])] if m.flip() else [])], **at)


def activation(m: FamilyMaker) -> None:
    """Apply functions that changed over the sets."""
    x = m.value(m.shape(m.one([1, 2, 4])), exact=True)
    shape = m.shape_of(x)
    op = m.one(
        ["Clip", "Dropout", "PRelu", "Elu", "Softmax", "LogSoftmax", "Hardmax", "Shrink", "Gemm", "Squeeze", "Pow"]
    )
    if op == "Clip":
        if m.opset < 11:
            m.node(op, [x], **({"min": -0.5} if m.flip() else {}), **({"max": 0.5} if m.flip() else {}))
        else:
            m.node(op, [x, m.put(np.float32(-0.5)) if m.flip() else "", m.put(np.float32(0.5))])
    elif op == "Dropout":
        m.node(op, [x], 2 if m.flip() and m.opset >= 12 else 1)  # before, its mask was anything
    elif op == "PRelu":
        m.node(op, [x, m.value(m.one([shape, shape[-1:], (1,)]))])
    elif op == "Gemm" and len(shape) == 2:
        more = [m.value((3,))] if m.opset >= 11 and m.flip() else [m.value((shape[0], 3))]
        m.node(op, [x, m.value((shape[1], 3)), *more], alpha=0.5, beta=m.one([0.0, 2.0]))
    elif op == "Squeeze":
        at = int(m.rng.integers(len(shape) + 1))
        if m.opset < 13:
            (y,) = m.node("Unsqueeze", [x], axes=[at])
            m.node(op, [y], axes=[at])
        else:
            (y,) = m.node("Unsqueeze", [x, m.integers(at)])
            m.node(op, [y, m.integers(at)] if m.flip() else [y])
    elif op == "Pow":
        dtype = m.one(["float32", "int32", "int64"]) if m.opset >= 12 else "float32"
        m.node(op, [x, m.put(np.asarray(m.one([2, 3, 0, 1, -1, 0.5] if dtype[0] == "f" else [2, 3, 0]), dtype))])
    elif op in ("Softmax", "LogSoftmax", "Hardmax"):
        m.node(op, [x], **({"axis": int(m.rng.integers(len(shape)))} if m.flip() else {}))
    else:
        m.node("Elu" if op != "Shrink" or m.opset < 9 else op, [x])


def sampled(m: FamilyMaker) -> None:
    """Sample at points that are data."""
    if m.opset < 16:
        raise LookupError
    mode = m.one(["bilinear", "nearest", "bicubic"]) if m.opset < 20 else m.one(["linear", "nearest", "cubic"])
    x, grid = m.value((m.one([1, 2]), 2, 4, 3)), None
    grid = m.put(m.rng.uniform(-1.3, 1.3, (m.shape_of(x)[0], 3, 2, 2)).astype(np.float32))
    m.node("GridSample", [x, grid], mode=mode, padding_mode=m.one(["zeros", "border", "reflection"]),
           align_corners=int(m.flip()))  # fmt: skip


FUNCTIONS = (pool, pool, transposed, transposed, convolution, activation, activation, sampled)
