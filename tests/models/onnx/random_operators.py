"""Random nodes that move, reduce and multiply, and all that a model may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.models.onnx.random_values import Made, Maker, binary, both, cast, compare, logical, unary, where

_ANY = ("float32", "float32", "int64", "int32", "bool")


def transpose(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0, _ANY)
    perm = [int(p) for p in m.rng.permutation(len(v.shape))]
    m.add("Transpose", [v.name], replace(v, shape=tuple(v.shape[p] for p in perm)), perm=perm)


def reshape(m: Maker) -> None:
    v = m.pick(dtypes=_ANY)
    count = int(np.prod(v.shape))
    kind = m.one(["Reshape", "Flatten", "Unsqueeze", "Squeeze", "Reshape", "Reshape"])
    if kind == "Flatten":
        axis = int(m.rng.integers(0, len(v.shape) + 1))
        shape = int(np.prod(v.shape[:axis])), int(np.prod(v.shape[axis:]))
        m.add(kind, [v.name], replace(v, shape=shape), axis=axis)
    elif kind == "Unsqueeze":
        axis = int(m.rng.integers(0, len(v.shape) + 1))
        shape = (*v.shape[:axis], 1, *v.shape[axis:])
        m.add(kind, [v.name, m.integers(axis)], replace(v, shape=shape))
    elif kind == "Squeeze":
        ones = [k for k, d in enumerate(v.shape) if d == 1]
        if not ones:
            raise LookupError
        axis = m.one(ones)
        m.add(kind, [v.name, m.integers(axis)], replace(v, shape=v.shape[:axis] + v.shape[axis + 1 :]))
    else:
        if count == 0:
            shape = list(v.shape)
            m.rng.shuffle(shape)
            m.add(kind, [v.name, m.integers(*shape)], replace(v, shape=tuple(shape)), allowzero=1)
            return
        shape = []
        left = count
        while left > 1 and len(shape) < 3 and m.flip(0.8):
            d = m.one([d for d in range(1, left + 1) if left % d == 0])
            shape.append(d)
            left //= d
        shape.append(left)
        m.add(kind, [v.name, m.integers(*shape)], replace(v, shape=tuple(shape)))


def slices(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0, _ANY)
    axis = int(m.rng.integers(len(v.shape)))
    d = v.shape[axis]
    step = m.one([1, 1, 1, 2, -1, -2, 3])
    a, b = sorted(int(x) for x in m.rng.integers(0, d + 1, 2))
    if step < 0:
        start, end = b - 1, a - 1 if a > 0 else -d - 1
        if b == 0:
            raise LookupError
        kept = len(range(b - 1, a - 1, step))
    else:
        start, end, kept = a, b, len(range(a, b, step))
    if kept == 0 and not m.flip(0.05):
        raise LookupError
    shape = (*v.shape[:axis], kept, *v.shape[axis + 1 :])
    m.add(
        "Slice",
        [v.name, m.integers(start), m.integers(end), m.integers(axis), m.integers(step)],
        replace(v, shape=shape),
    )


def split(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and max(v.shape) > 1, _ANY)
    axis = m.one([k for k, d in enumerate(v.shape) if d > 1])
    cut = int(m.rng.integers(1, v.shape[axis]))
    parts = [cut, v.shape[axis] - cut]
    m.add(
        "Split",
        [v.name, m.integers(*parts)],
        *[replace(v, shape=(*v.shape[:axis], p, *v.shape[axis + 1 :])) for p in parts],
        axis=axis,
    )


def concat(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0, _ANY)
    axis = int(m.rng.integers(len(v.shape)))

    def fits(w: Made) -> bool:
        return len(w.shape) == len(v.shape) and all(
            a == b for k, (a, b) in enumerate(zip(w.shape, v.shape, strict=False)) if k != axis
        )

    parts = [v]
    for _ in range(int(m.rng.integers(1, 3))):
        parts.append(m.pick(fits, (v.dtype,)) if m.flip(0.7) else m.constant(v.shape, v.dtype))
    if m.flip():
        parts = parts[::-1]
    known = both(*parts)
    shape = (*v.shape[:axis], sum(p.shape[axis] for p in parts), *v.shape[axis + 1 :])
    out = Made("", shape, v.dtype, *(known or (None,)))
    m.add("Concat", [p.name for p in parts], out, axis=axis if m.flip() else axis - len(shape))


def expand(m: Maker) -> None:
    v = m.pick(dtypes=_ANY)
    if m.flip(0.3) and v.shape:
        times = [m.one([1, 1, 2, 3]) for _ in v.shape]
        m.add(
            "Tile",
            [v.name, m.integers(*times)],
            replace(v, shape=tuple(a * b for a, b in zip(v.shape, times, strict=False))),
        )
        return
    shape = tuple(m.one(m.dims) if d == 1 else d for d in v.shape)
    shape = (m.one(m.dims), *shape) if m.flip(0.3) else shape
    m.add("Expand", [v.name, m.integers(*shape)], replace(v, shape=shape))


def pad(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and 0 not in v.shape, ("float32", "float32", "int64"))
    mode = m.one(["constant", "constant", "constant", "reflect", "edge"])
    low, high = -1 if mode == "constant" else 0, 3
    before, after = [], []
    for d in v.shape:
        top = min(high, d) if mode == "reflect" else high
        x, y = (int(k) for k in m.rng.integers(low, max(top, 1), 2)) if m.flip() else (0, 0)
        if d + x + y <= 0:
            x = y = 0
        before.append(x)
        after.append(y)
    inputs = [v.name, m.integers(*before, *after)]
    if mode == "constant" and m.flip() and v.dtype == "float32":
        m.constants["half"] = np.float32(0.5)
        inputs.append("half")
    shape = tuple(d + a + b for d, a, b in zip(v.shape, before, after, strict=False))
    m.add(
        "Pad", inputs, replace(v, shape=shape, size=v.size and max(v.size, 1.0), quarters=max(v.quarters, 1)), mode=mode
    )


def gather(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and 0 not in v.shape, _ANY)
    axis = int(m.rng.integers(len(v.shape)))
    name = f"i{len(m.constants)}"
    where_ = m.one([(), (2,), (3,), (2, 2)])
    m.constants[name] = np.asarray(m.rng.integers(-v.shape[axis], v.shape[axis], where_), np.int64)
    m.add("Gather", [v.name, name], replace(v, shape=(*v.shape[:axis], *where_, *v.shape[axis + 1 :])), axis=axis)


def reduce(m: Maker) -> None:
    v = m.pick(lambda v: 0 not in v.shape, ("float32", "float32", "float32", "int64", "int32"))
    axes = [k for k in range(len(v.shape)) if m.flip()]
    keep = m.flip()
    op = m.one(["Sum", "Mean", "Max", "Min", "L2", "L1", "SumSquare", "Prod", "LogSumExp"])
    if v.dtype != "float32":
        op = m.one(["Sum", "Max", "Min"])
    gone = axes or range(len(v.shape))
    shape = tuple(1 if k in gone else d for k, d in enumerate(v.shape) if keep or k not in gone)
    count = int(np.prod([v.shape[k] for k in gone]))
    exact = op in ("Sum", "Max", "Min", "L1")
    out = replace(v, shape=shape, size=v.size * count if exact and v.size is not None else None)
    at = {"keepdims": int(keep)}
    if op == "Sum":
        m.add("ReduceSum", [v.name, *([m.integers(*axes)] if axes else [])], out, **at)
    else:
        m.add(f"Reduce{op}", [v.name], out, **at, **({"axes": axes} if axes else {}))


def argmax(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and 0 not in v.shape and v.size is not None)
    axis = int(m.rng.integers(len(v.shape)))
    m.add(
        m.one(["ArgMax", "ArgMin"]),
        [v.name],
        Made("", (*v.shape[:axis], *v.shape[axis + 1 :]), "int64", float(v.shape[axis]), 0),
        axis=axis,
        keepdims=0,
    )


def cumsum(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and 0 not in v.shape)
    name = f"i{len(m.constants)}"
    axis = int(m.rng.integers(len(v.shape)))
    m.constants[name] = np.asarray(axis, np.int64)
    m.add(
        "CumSum",
        [v.name, name],
        replace(v, size=v.size and v.size * v.shape[axis]),
        reverse=int(m.flip()),
        exclusive=int(m.flip()),
    )


def softmax(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0)
    axis = int(m.rng.integers(len(v.shape)))
    m.add(
        m.one(["Softmax", "Softmax", "LogSoftmax"]),
        [v.name],
        replace(v, size=None),
        axis=axis - m.one([0, len(v.shape)]),
    )


def norm(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 0 and 0 not in v.shape)
    axis = int(m.rng.integers(len(v.shape)))
    scale = m.constant(v.shape[axis:])
    inputs = [v.name, scale.name] + ([m.constant(v.shape[axis:]).name] if m.flip() else [])
    m.add("LayerNormalization", inputs, replace(v, size=None), axis=axis, epsilon=0.1)


def matmul(m: Maker) -> None:
    a = m.pick(lambda v: len(v.shape) > 0)
    k = a.shape[-1]

    def fits(v: Made) -> bool:
        if len(v.shape) == 1:
            return v.shape[0] == k
        return (
            len(v.shape) > 1
            and v.shape[-2] == k
            and all(x == y or 1 in (x, y) for x, y in zip(a.shape[-3::-1], v.shape[-3::-1], strict=False))
        )

    try:
        b = m.pick(fits) if m.flip() else m.constant((k, m.one(m.dims)))
    except LookupError:
        b = m.constant((k, m.one(m.dims)))
    shape = np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    known = both(a, b)
    m.add(
        "MatMul",
        [a.name, b.name],
        Made("", shape, "float32", known and a.size * b.size * max(k, 1), a.quarters + b.quarters),
    )


def gemm(m: Maker) -> None:
    a = m.pick(lambda v: len(v.shape) == 2)
    ta, tb = m.flip(), m.flip()
    rows, k = a.shape[::-1] if ta else a.shape
    n = m.one(m.dims)
    b = m.constant((n, k) if tb else (k, n))
    inputs = [a.name, b.name]
    if m.flip(0.7):
        inputs.append(m.constant(m.one([(n,), (rows, n), (1, n), (rows, 1), ()])).name)
    m.add(
        "Gemm",
        inputs,
        Made("", (rows, n), "float32", None),
        transA=int(ta),
        transB=int(tb),
        alpha=m.one([1.0, 0.5]),
        beta=m.one([1.0, 2.0]),
    )


def conv(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) in (3, 4) and 0 not in v.shape)
    space, c = v.shape[2:], v.shape[1]
    group = m.one([g for g in range(1, c + 1) if c % g == 0] + [c])
    kernel = [m.one([1, 2, 3]) for _ in space]
    before, after = ([m.one([0, 0, 1, 2]) for _ in space] for _ in range(2))
    strides, dilations = [m.one([1, 1, 2]) for _ in space], [m.one([1, 1, 1, 2]) for _ in space]
    size = [
        (d + a + b - (k - 1) * e - 1) // s + 1
        for d, a, b, k, e, s in zip(space, before, after, kernel, dilations, strides, strict=False)
    ]
    if min(size) <= 0:
        raise LookupError
    out = group * m.one([1, 2, 3])
    w = m.constant((out, c // group, *kernel))
    inputs = [v.name, w.name] + ([m.constant((out,)).name] if m.flip() else [])
    size_ = v.size and v.size * (c // group) * int(np.prod(kernel)) + 1
    m.add(
        "Conv",
        inputs,
        Made("", (v.shape[0], out, *size), "float32", size_, v.quarters + 1),
        group=group,
        pads=before + after,
        strides=strides,
        dilations=dilations,
        kernel_shape=kernel,
    )


def pool(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) in (3, 4) and 0 not in v.shape)
    space = v.shape[2:]
    if m.flip(0.2):
        op = m.one(["GlobalAveragePool", "GlobalMaxPool"])
        m.add(op, [v.name], Made("", (*v.shape[:2], *[1] * len(space)), "float32", None))
        return
    kernel = [m.one([1, 2, 3]) for _ in space]
    before, after = ([int(m.rng.integers(0, k)) for k in kernel] for _ in range(2))
    strides = [m.one([1, 1, 2]) for _ in space]
    size = [(d + a + b - k) // s + 1 for d, a, b, k, s in zip(space, before, after, kernel, strides, strict=False)]
    if min(size) <= 0:
        raise LookupError
    op = m.one(["MaxPool", "AveragePool"])
    at = {"count_include_pad": int(m.flip())} if op == "AveragePool" else {}
    m.add(
        op,
        [v.name],
        replace(v, shape=(*v.shape[:2], *size), size=v.size if op == "MaxPool" else None),
        kernel_shape=kernel,
        pads=before + after,
        strides=strides,
        **at,
    )


def batchnorm(m: Maker) -> None:
    v = m.pick(lambda v: len(v.shape) > 1 and 0 not in v.shape)
    name = f"n{len(m.constants)}"
    m.constants[name] = np.asarray(m.rng.integers(1, 5, v.shape[1]) / 4, np.float32)
    others = [m.constant((v.shape[1],)).name for _ in range(3)]
    m.add("BatchNormalization", [v.name, *others, name], replace(v, size=None))


OPERATORS = (
    unary,
    unary,
    unary,
    unary,
    binary,
    binary,
    binary,
    binary,
    binary,
    compare,
    logical,
    where,
    cast,
    transpose,
    transpose,
    reshape,
    reshape,
    slices,
    slices,
    split,
    concat,
    concat,
    expand,
    pad,
    gather,
    reduce,
    reduce,
    argmax,
    cumsum,
    softmax,
    norm,
    matmul,
    matmul,
    gemm,
    conv,
    conv,
    pool,
    batchnorm,
)
