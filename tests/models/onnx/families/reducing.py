"""Reductions, positions, the largest few, sums along an axis, Einstein sums."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker

_OPS = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
        "ReduceLogSum", "ReduceLogSumExp"]  # fmt: skip


def reduction(m: FamilyMaker) -> None:
    """Reduce along axes of either sign, none, or an empty list."""
    op, shape = m.one(_OPS), m.shape(m.one([0, 1, 2, 3, 4]))
    dtype = m.one(["float32"] * 4 + ["int32", "int64", "float64", "int8", "uint8"])
    whole = dtype[0] != "f"
    if m.flip(0.07) and shape and op in ("ReduceSum", "ReduceProd", "ReduceL1") and not whole:
        shape = (*shape[:-1], 0)
    if whole and op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
        op = "ReduceSum"
    x = m.value(shape, dtype, exact=True)
    if op == "ReduceLogSum":
        (x,) = m.node("Abs", [x])
    axes = [a - (len(shape) if m.flip(0.4) else 0) for a in range(len(shape)) if m.flip()]
    at: dict = {"keepdims": int(m.flip())}
    late = m.opset >= (13 if op == "ReduceSum" else 18)
    if late:
        given = m.one(["list", "list", "list", "absent", "empty"])
        inputs = [x] + ([m.integers(*axes)] if given == "list" else [m.integers()] if given == "empty" else [])
        if m.flip(0.3):
            at["noop_with_empty_axes"] = int(m.flip(0.7))
        m.node(op, inputs, **at)
    else:
        axes = axes if m.opset >= 11 else [a % len(shape) for a in axes]
        m.node(op, [x], **at, **({"axes": axes} if axes else {}))


def position(m: FamilyMaker) -> None:
    """Find the largest, among many equal ones."""
    shape = m.shape(m.one([1, 2, 3]))
    if 0 in shape:
        raise LookupError
    axis = int(m.rng.integers(len(shape)))
    at: dict = {"axis": axis - (len(shape) if m.flip(0.4) and m.opset >= 11 else 0), "keepdims": int(m.flip())}
    if m.opset >= 12 and m.flip(0.4):
        at["select_last_index"] = int(m.flip(0.8))
    x = m.value(shape, m.one(["float32", "float32", "int32", "float64", "uint8", "int8"]), exact=True)
    m.node(m.one(["ArgMax", "ArgMin"]), [x], **at)


def largest(m: FamilyMaker) -> None:
    """Sort out the first few, among many equal ones."""
    shape = tuple(m.one([3, 5, 8]) if m.flip() else d for d in m.shape(m.one([1, 2, 3])))
    axis = int(m.rng.integers(len(shape)))
    k = int(m.rng.integers(0, shape[axis] + 1)) if m.flip(0.2) else int(m.rng.integers(1, shape[axis] + 1))
    x = m.value(
        shape, m.one(["float32", "float32", "int64", "int32", "float64"]) if m.opset >= 11 else "float32", exact=True
    )
    if m.opset < 10:
        m.node("TopK", [x], 2, k=max(k, 1), axis=axis)
        return
    at = {"largest": int(m.flip()), "sorted": 1} if m.opset >= 11 else {}
    m.node("TopK", [x, m.integers(k)], 2, axis=axis, **at)


def along(m: FamilyMaker) -> None:
    """Sum along an axis, in any type."""
    if m.opset < 11:
        raise LookupError
    shape, dtype = m.shape(m.one([1, 2, 3])), m.one(["float32", "int32", "int64", "float64"])
    axis = int(m.rng.integers(-len(shape), len(shape)))
    at = {"reverse": int(m.flip()), "exclusive": int(m.flip())}
    m.node("CumSum", [m.value(shape, dtype, exact=True), m.put(np.asarray(axis, np.int64), constant=True)], **at)


def einsum(m: FamilyMaker) -> None:
    """Multiply and sum by letters: repeated ones, missing ones, dots."""
    if m.opset < 12:
        raise LookupError
    text = m.one(["ij,jk->ik", "ij,jk", "bij,bjk->bik", "ij->ji", "ij->", "ii->i", "ii", "i,j->ij", "bhqd,bhkd->bhqk",
                  "...ij,...jk->...ik", "ij,ij->", "ij,ij->j", "bij->b", "i,i", "ijk,k->ji", "ij,jk,kl->il", "i,i,i->i",
                  "...i->...", "iij->j", "ij, jk -> ik"])  # fmt: skip
    sizes = {c: m.one([1, 2, 3, 4]) for c in "abcdefghijklmnopqrstuvwxyz"}
    lead = m.shape(m.one([0, 1, 2]))
    inputs = []
    for term in text.split("->")[0].replace(" ", "").split(","):
        letters = tuple(sizes[c] for c in term.replace("...", ""))
        inputs.append(m.value((*(lead if "..." in term else ()), *letters), exact=True))
    m.node("Einsum", inputs, equation=text)


def norms(m: FamilyMaker) -> None:
    """Softmax and Hardmax along any axis."""
    shape = m.shape(m.one([1, 2, 3, 4]))
    axis = int(m.rng.integers(len(shape)))
    op = m.one(["Softmax", "LogSoftmax", "Hardmax"])
    x = m.value(shape, exact=op == "Hardmax")
    m.node(op, [x], **({"axis": axis - (len(shape) if m.flip(0.4) and m.opset >= 11 else 0)} if m.flip(0.8) else {}))


FUNCTIONS = (reduction, reduction, reduction, position, largest, along, einsum, einsum, norms)
