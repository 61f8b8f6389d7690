"""Normalisations, whole and spelled out, and the norms of before."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker


def layer(m: FamilyMaker) -> None:
    """Add layer or RMS normalisation."""
    op = m.one(["LayerNormalization", "RMSNormalization"])
    if m.opset < (17 if op[0] == "L" else 23):
        raise LookupError
    shape = m.shape(m.one([1, 2, 3, 4]))
    axis = int(m.rng.integers(len(shape)))
    spread = m.one([shape[axis:], shape[axis:], shape[-1:], ()]) if op[0] == "R" else shape[axis:]
    inputs = [m.value(shape), m.value(spread)] + ([m.value(spread)] if op[0] == "L" and m.flip() else [])
    outputs = [True, m.flip(0.4), m.flip(0.4)] if op[0] == "L" else 1
    m.node(op, inputs, outputs, axis=axis - m.one([0, len(shape)]), epsilon=m.one([1e-5, 0.1]))


def groups(m: FamilyMaker) -> None:
    """Add group or instance normalisation."""
    count, per = m.one([1, 2, 3]), m.one([1, 2])
    c = count * per
    shape = (m.one([1, 2]), c, m.one([2, 3, 5]), *m.shape(m.one([0, 1, 2])))  # of one element nothing is left
    x = m.value(shape)
    if m.flip() or m.opset < 18:
        m.node("InstanceNormalization", [x, m.value((c,)), m.value((c,))], epsilon=m.one([1e-5, 0.1]))
        return
    span = c if m.opset >= 21 else count
    m.node("GroupNormalization", [x, m.value((span,)), m.value((span,))], num_groups=count)


def spelled(m: FamilyMaker) -> None:
    """Spell a normalisation out by means and squares."""
    shape = m.shape(m.one([2, 3]))
    x = m.value(shape)
    (mean,) = _mean(m, x)
    (d,) = m.node("Sub", [x, mean])
    if m.flip():
        (sq,) = m.node("Mul", [d, d])
    else:
        (sq,) = m.node("Pow", [d, m.put(np.float32(2), constant=True)])
    (var,) = _mean(m, sq)
    (e,) = m.node("Add", [var, m.put(np.float32(m.one([1e-5, 0.25])), constant=True)])
    (root,) = m.node("Sqrt", [e])
    (y,) = m.node("Div", [d, root])
    if m.flip():
        (y,) = m.node("Mul", [y, m.value(shape[-1:])])
        (y,) = m.node("Add", [y, m.value(shape[-1:])])


def _mean(m: FamilyMaker, x: str) -> list[str]:
    if m.opset >= 18:
        return m.node("ReduceMean", [x, m.integers(-1)])
    return m.node("ReduceMean", [x], axes=[-1] if m.opset >= 11 else [len(m.shape_of(x)) - 1])


def older(m: FamilyMaker) -> None:
    """Add batch, local response, Lp and mean-variance normalisation."""
    op = m.one(["BatchNormalization", "LRN", "LpNormalization", "MeanVarianceNormalization"])
    c = m.one([1, 3, 4])
    shape = (m.one([1, 2]), c, m.one([2, 3]), m.one(m.dims))
    x = m.value(shape)
    if op == "BatchNormalization":
        more = [m.value((c,)) for _ in range(3)]
        m.node(op, [x, *more, m.put(np.abs(m.reals((c,))) + np.float32(0.1))], epsilon=m.one([1e-5, 0.01]))
    elif op == "LRN":
        m.node(op, [x], size=m.one([1, 2, 3, 5]), alpha=m.one([1e-4, 0.5]), beta=0.75, bias=m.one([1.0, 2.0]))
    elif op == "LpNormalization":
        m.node(op, [x], p=m.one([1, 2]), axis=m.one([0, 1, 2, 3, -1]))
    else:
        m.node(op, [x], **({"axes": m.one([[0, 2, 3], [0, 1, 2, 3]])} if m.flip() else {}))


FUNCTIONS = (layer, layer, groups, groups, spelled, older)
