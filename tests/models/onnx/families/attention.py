"""Attention: spelled out with masks and scales, and ONNX's own."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker


def decomposed(m: FamilyMaker) -> None:
    """Spell out attention over heads, as exporters do."""
    b, s, t, h, d = m.one([1, 2]), m.one([1, 3, 5]), m.one([1, 4]), m.one([1, 2, 3]), m.one([2, 4])
    width = h * d
    q, k, v = m.value((b, s, width)), m.value((b, t, width)), m.value((b, t, width))
    if m.flip(0.6):
        q, k, v = (m.node("MatMul", [n, m.value((width, width), constant=True)])[0] for n in (q, k, v))
    heads = [_heads(m, n, (0, r, h, d) if m.flip() else (b, r, h, d), (0, 2, 3, 1) if n == k and m.flip() else
                    (0, 2, 1, 3)) for n, r in ((q, s), (k, t), (v, t))]  # fmt: skip
    q, k, v = heads
    if m.shape_of(k)[2:] != (d, t) or (d == t and m.flip()):
        if m.shape_of(k)[2:] != (t, d):
            raise LookupError
        (k,) = m.node("Transpose", [k], perm=[0, 1, 3, 2])
    scale = m.put(np.float32(1 / np.sqrt(d)), constant=True)
    if m.flip():
        (q,) = m.node("Mul", [q, scale])
    (score,) = m.node("MatMul", [q, k])
    score = _masked(m, score, (b, h, s, t), scale)
    (p,) = m.node("Softmax", [score], axis=-1 if m.opset >= 13 or m.flip() else 3)
    (y,) = m.node("MatMul", [p, v])
    (y,) = m.node("Transpose", [y], perm=[0, 2, 1, 3])
    (y,) = m.node("Reshape", [y, m.integers(b, s, width)])
    if m.flip(0.4):
        (y,) = m.node("MatMul", [y, m.value((width, m.one([2, width])), constant=True)])


def _heads(m: FamilyMaker, x: str, shape: tuple[int, ...], perm: tuple[int, ...]) -> str:
    (y,) = m.node("Reshape", [x, m.integers(*shape)])
    return m.node("Transpose", [y], perm=list(perm))[0]


def _masked(m: FamilyMaker, score: str, shape: tuple[int, ...], scale: str) -> str:
    b, h, s, t = shape
    if m.flip():
        (score,) = m.node(m.one(["Div", "Mul"]), [score, m.put(np.float32(1.5), constant=True) if m.flip() else scale])
    kind = m.one(["none", "added", "where", "causal"])
    spread = m.one([(b, 1, 1, t), (1, 1, s, t), (b, h, s, t), (s, t)])
    if kind == "added":
        kept = m.rng.random(spread) < 0.7
        kept[..., 0] = True
        mask = m.put(np.where(kept, 0, m.one([-1e4, -np.inf, -3.4e38])).astype(np.float32))
        return m.node("Add", [score, mask])[0]
    if kind == "where":
        kept = m.rng.random(spread) < 0.7
        kept[..., 0] = True
        return m.node("Where", [m.put(kept), score, m.put(np.float32(m.one([-1e9, -np.inf])), constant=True)])[0]
    if kind == "causal" and m.opset >= 14:
        (cut,) = m.node("Trilu", [m.put(np.ones((s, t), np.float32), constant=True)], upper=0)
        (kept,) = m.node("Cast", [cut], to=9)
        return m.node("Where", [kept, score, m.put(np.float32(-1e9), constant=True)])[0]
    return score


def whole(m: FamilyMaker) -> None:
    """Add ONNX's operator, with groups of heads, masks, a past, and what it shows of its scores."""
    if m.opset < 23:
        raise LookupError
    b, s, t = m.one([1, 2]), m.one([1, 3]), m.one([1, 4])
    kv, groups, d, dv = m.one([1, 2]), m.one([1, 2]), m.one([2, 4]), m.one([2, 3])
    h, past = kv * groups, m.one([0, 0, 2])
    at: dict = {}
    if m.flip():
        shapes = [(b, h, s, d), (b, kv, t, d), (b, kv, t, dv)]
    else:
        shapes = [(b, s, h * d), (b, t, kv * d), (b, t, kv * dv)]
        at |= {"q_num_heads": h, "kv_num_heads": kv}
    inputs = [m.value(x) for x in shapes]
    total = t + past
    spread = m.one([(s, total), (1, 1, s, total), (b, 1, s, total), (b, h, s, total)])
    mask = ""
    if m.flip(0.6):
        kept = m.rng.random(spread) < 0.7
        kept[..., 0] = True
        mask = m.put(kept if m.flip() else np.where(kept, 0.25, -1e4).astype(np.float32))
    inputs += [mask] + ([m.value((b, kv, past, d)), m.value((b, kv, past, dv))] if past else [])
    while not inputs[-1]:
        inputs.pop()
    # Which keys come before a query is another thing for ONNX and for ONNX Runtime where there is a past.
    at |= ({"is_causal": 1} if m.flip(0.4) and not past else {}) | ({"scale": 0.4} if m.flip() else {})
    at |= {"softcap": 1.5} if m.flip(0.3) else {}
    outputs = [True, bool(past), bool(past), m.flip(0.3)]
    if outputs[3]:
        # What ONNX Runtime masks is its lowest number, and not an infinity.
        at["qk_matmul_output_mode"] = m.one([0, 3] if mask or "is_causal" in at else [0, 1, 2, 3])
    m.node("Attention", inputs, outputs, **at)


FUNCTIONS = (decomposed, decomposed, whole)
