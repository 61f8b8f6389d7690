"""Gathering and scattering: negative positions, the same one twice, positions that are data."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker

_ANY = ["float32", "float32", "float32", "int64", "int32", "bool", "float64", "uint8"]


def _positions(m: FamilyMaker, shape: tuple[int, ...], size: int) -> str:
    low = -size if m.opset >= 11 and m.flip() else 0
    return m.put(np.asarray(m.rng.integers(low, size, shape), m.one([np.int64, np.int64, np.int32])))


def _data(m: FamilyMaker, rank: int, dtype: str | None = None) -> tuple[str, tuple[int, ...], str]:
    dtype, shape = dtype or m.one(_ANY), m.shape(rank)
    return m.value(shape, dtype, exact=True), shape, dtype


def gather(m: FamilyMaker) -> None:
    """Take slices."""
    x, shape, _ = _data(m, m.one([1, 2, 3]))
    axis = int(m.rng.integers(len(shape)))
    at = _positions(m, m.one([(), (2,), (2, 3), (0,), (1,)]), shape[axis])
    m.node("Gather", [x, at], axis=axis - (len(shape) if m.flip(0.4) and m.opset >= 11 else 0), exact=True)


def elements(m: FamilyMaker) -> None:
    """Take single elements, or put some."""
    if m.opset < 11:
        raise LookupError
    reduction = _reduction(m)
    x, shape, dtype = _data(m, m.one([1, 2, 3]), "float32" if reduction else None)
    axis = int(m.rng.integers(len(shape)))
    span = tuple(m.one([1, d]) if k != axis else m.one([1, 2, d]) for k, d in enumerate(shape))
    if m.flip(0.4):
        m.node("GatherElements", [x, _positions(m, span, shape[axis])], axis=axis, exact=True)
        return
    if not reduction:  # duplicates have no order then
        span = tuple(min(a, b) for a, b in zip(span, shape, strict=True))
        order = np.stack(
            [m.rng.permutation(shape[axis])[: span[axis]] for _ in range(int(np.prod(span) // span[axis]))]
        )
        rest = span[:axis] + span[axis + 1 :]
        at = m.put(np.moveaxis(order.reshape(*rest, span[axis]), -1, axis).copy())
    else:
        at = _positions(m, span, shape[axis])
    new = m.value(span, dtype, exact=True)
    m.node("ScatterElements", [x, at, new], axis=axis - (len(shape) if m.flip(0.4) else 0), exact=True, **reduction)


def _reduction(m: FamilyMaker) -> dict:
    if m.opset < 16 or m.flip(0.4):
        return {}
    return {"reduction": m.one(["add", "mul", "max", "min"] if m.opset >= 18 else ["add", "mul"])}


def tuples(m: FamilyMaker) -> None:
    """Take or put slices named by several positions."""
    if m.opset < 12:
        raise LookupError
    reduction = _reduction(m)
    x, shape, dtype = _data(m, m.one([1, 2, 3]), "float32" if reduction else None)
    if m.flip():
        batch = m.one([0, 0, 1]) if len(shape) > 1 else 0
        depth = int(m.rng.integers(1, len(shape) - batch + 1))
        lead = (*shape[:batch], *m.one([(), (2,), (2, 2)]))
        at = [m.rng.integers(-shape[batch + i] if m.flip() else 0, shape[batch + i], lead) for i in range(depth)]
        m.node("GatherND", [x, m.put(np.stack(at, -1))], exact=True, **({"batch_dims": batch} if batch else {}))
        return
    depth = int(m.rng.integers(1, len(shape) + 1))
    count = int(np.prod(shape[:depth]))
    lead = m.one([(1,), (2,), (3,)])
    if reduction:
        flat = m.rng.integers(0, count, lead)
    else:
        lead = (min(lead[0], count),)
        flat = m.rng.permutation(count)[: lead[0]]
    at = np.stack(np.unravel_index(flat, shape[:depth]), -1)
    at = at - np.array(shape[:depth]) * (m.rng.random(at.shape) < 0.4)
    m.node("ScatterND", [x, m.put(at), m.value((*lead, *shape[depth:]), dtype, exact=True)], exact=True, **reduction)


def slices(m: FamilyMaker) -> None:
    """Cut with ends beyond the tensor and steps of either sign."""
    x, shape, _ = _data(m, m.one([1, 2, 3]))
    axes = [int(a) for a in m.rng.permutation(len(shape))[: m.one([1, len(shape)])]]
    starts, ends = ([int(v) for v in m.rng.integers(-9, 10, len(axes))] for _ in range(2))
    if m.opset < 10:
        m.node("Slice", [x], starts=starts, ends=[max(e, -(2**31)) for e in ends], axes=axes, exact=True)
        return
    steps = [m.one([1, 1, 2, -1, -2, 5]) for _ in axes]
    ends = [
        m.one([e, e, -(2**63) + 1, 2**63 - 1, 2**31 - 1][: 5 if s > 0 else 3]) for e, s in zip(ends, steps, strict=True)
    ]
    named = [a - (len(shape) if m.flip(0.3) else 0) for a in axes]
    inputs = [x, m.integers(*starts), m.integers(*ends), m.integers(*named)] + (
        [m.integers(*steps)] if m.flip(0.8) or min(steps) < 0 else []
    )
    m.node("Slice", inputs, exact=True)


def blocks(m: FamilyMaker) -> None:
    """Move blocks between depth and space, and turn sequences around."""
    op, mode = m.one(["DepthToSpace", "SpaceToDepth", "ReverseSequence", "Compress"]), m.one(["DCR", "CRD"])
    b = m.one([1, 2, 3])
    if op == "DepthToSpace":
        at = {"mode": mode} if m.opset >= 11 else {}
        m.node(op, [m.value((m.one([1, 2]), b * b * m.one([1, 2]), 2, 3), exact=True)], blocksize=b, exact=True, **at)
    elif op == "SpaceToDepth":
        m.node(op, [m.value((m.one([1, 2]), m.one([1, 2]), b * 2, b), exact=True)], blocksize=b, exact=True)
    elif op == "ReverseSequence" and m.opset >= 10:
        time = m.one([0, 1])
        shape = m.shape(m.one([2, 3]))
        lengths = m.put(np.asarray(m.rng.integers(1, shape[time] + 1, shape[1 - time])))
        m.node(op, [m.value(shape, exact=True), lengths], time_axis=time, batch_axis=1 - time, exact=True)
    else:
        x, shape, _ = _data(m, 2)
        m.node("Compress", [x, m.put(np.asarray(m.rng.random(shape[1]) < 0.6), constant=True)], axis=1, exact=True)


def padding(m: FamilyMaker) -> None:
    """Pad, or cut by negative pads."""
    x, shape, dtype = _data(m, m.one([1, 2, 3]), m.one(["float32", "float32", "int32"]) if m.opset >= 11 else "float32")
    mode = m.one(["constant", "edge", "reflect", *(["wrap"] if m.opset >= 19 else [])])
    top = [max(1, d) if mode == "reflect" else 4 for d in shape]
    pads = [int(m.rng.integers(0 if mode != "constant" else -1, t)) for t in top + top]
    if m.opset < 11:
        m.node("Pad", [x], mode=mode, pads=pads, value=0.5, exact=True)
        return
    inputs = [x, m.integers(*pads)]
    if mode == "constant" and m.flip():
        inputs.append(m.put(np.asarray(2.5 if dtype == "float32" else 2, dtype)))
    if m.opset >= 18 and m.flip(0.3):
        a = int(m.rng.integers(len(shape)))
        inputs = [x, m.integers(pads[a], pads[a + len(shape)]), *(inputs[2:] or [""]), m.integers(a - len(shape))]
    m.node("Pad", inputs, mode=mode, exact=True)


FUNCTIONS = (gather, elements, elements, tuples, tuples, slices, slices, blocks, padding)
