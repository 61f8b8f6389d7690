"""Hypothesis strategies of expressions as operators are: products, windows, rows and streams, in any order of axes.

:mod:`tests.fuzz.draw` draws freely and so seldom meets what templates are made for: operands that are stored
transposed, reductions over axes in the middle, padded and strided windows, several outputs, dtypes of matrix units. The
language is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.language import Data, live

#: Extents of tiles and vectors, next to them, odd and prime.
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 37, 48, 64, 65, 96, 97, 128, 130, 192, 255, 256)
#: What is loaded, and what it is added up in.
PAIRS = (
    ("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"), ("float16", "float16"),
    ("float64", "float64"), ("int32", "int32"),
)  # fmt: skip
#: Points of a stage at most.
_MOST = 1 << 24


class _Draw:
    """Choices of one expression."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.inputs: list[Data] = []

    def one(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(tuple(options)))

    def chance(self, percent: int) -> bool:
        """Return whether something less plain is drawn; shrinks to the plain."""
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def extents(self, names: Sequence[str]) -> dict[str, int]:
        """Return an extent for every axis, few points together."""
        left, found = _MOST, {}
        for n in names:
            found[n] = self.one([e for e in EXTENTS if e <= left])
            left //= found[n]
        return found

    def permuted(self, names: Sequence[str]) -> list[str]:
        return list(self.draw(st.permutations(tuple(names)))) if self.chance(60) else list(names)

    def operand(self, names: Sequence[str], extents: dict[str, int], dtype: str) -> Data:
        """Return a load of a new input by axes in some order, some of them strided or behind a margin."""
        index: list[Data] = []
        shape = []
        for n in self.permuted(names):
            step, start = (self.one((2, 3)) if self.chance(8) else 1), (self.one((1, 4)) if self.chance(8) else 0)
            at: Data = n if step == 1 else ["*", n, step]
            index.append(["+", at, start] if start else at)
            shape.append((extents[n] - 1) * step + 1 + start + (self.one((1, 3)) if self.chance(8) else 0))
        return self.load(index, shape, dtype)

    def load(self, index: Sequence[Data], shape: Sequence[int], dtype: str) -> Data:
        name = f"X{len(self.inputs)}"
        self.inputs.append([name, list(shape), dtype])
        return ["load", name, list(index)]


def _as(value: Data, here: str, there: str) -> Data:
    return value if here == there else ["cast", there, value]


def _stage(name: str, axes: dict[str, int], reduce: dict[str, int], combine: str | None, body: Data) -> Data:
    return {"name": name, "axes": [list(a) for a in axes.items()], "reduce": [list(a) for a in reduce.items()],
            "combine": combine, "body": body}  # fmt: skip


def _epilogue(d: _Draw, axes: dict[str, int], dtype: str) -> list[Data]:
    """Return no stage behind ``T0``, or one with a bias along an axis and perhaps another dtype."""
    if not d.chance(40):
        return []
    value: Data = ["load", "T0", list(axes)]
    if d.chance(60):
        value = ["call", "add", value, d.operand([d.one(list(axes))], axes, dtype)]
    value = ["call", "max", value, ["const", 0, dtype] if "int" in dtype else ["const", 0.0, dtype]]
    there = d.one((dtype, "float16", "float32"))
    return [_stage("T1", axes, {}, None, _as(value, dtype, there))]


def _product(d: _Draw) -> list[Data]:
    rows = ["b", "m", "n"] if d.chance(25) else ["m", "n"]
    reduced = ["k", "l"] if d.chance(20) else ["k"]
    extents = d.extents([*rows, *reduced])
    loaded, summed = d.one(PAIRS)
    batch = rows[:-2]
    a, b = (d.operand([*batch, own, *reduced], extents, loaded) for own in ("m", "n"))
    body = ["call", "mul", _as(a, loaded, summed), _as(b, loaded, summed)]
    axes = {n: extents[n] for n in d.permuted(rows)}
    return [_stage("T0", axes, {n: extents[n] for n in reduced}, "sum", body), *_epilogue(d, axes, summed)]


def _window(d: _Draw) -> list[Data]:
    """Return a convolution, of every channel alone or of all, or a pooling: along one or two axes."""
    slides = ["y", "x"][: d.one((1, 2))]
    kind = d.one(("conv", "depthwise", "pool"))
    names = ["n", "f", *slides] if kind == "conv" else ["n", "c", *slides]
    extents = d.extents([*names, *(("c",) if kind == "conv" else ())])
    taps = {f"k{s}": d.one((1, 2, 3, 5)) for s in slides}
    stride, dilation, padding = d.one((1, 1, 2)), d.one((1, 1, 2)), d.one((0, 1, 2))
    loaded, summed = d.one(PAIRS[:4])
    index: list[Data] = ["n", "c"]
    shape, guards = [extents["n"], extents["c"]], []
    for s in slides:
        at: Data = ["+", ["*", s, stride], ["*", f"k{s}", dilation]]
        size = max(1, (extents[s] - 1) * stride + (taps[f"k{s}"] - 1) * dilation + 1 - 2 * padding)
        if padding:
            at = ["-", at, padding]
            guards += [["ge", at, 0], ["lt", at, size]]
        index.append(at)
        shape.append(size)
    if d.chance(30):  # channels last
        index, shape = [index[0], *index[2:], index[1]], [shape[0], *shape[2:], shape[1]]
    value = d.load(index, shape, loaded)
    if guards:
        zero = ["const", 0 if "int" in loaded else 0.0, loaded]
        value = ["choose", "if_then_else", ["all", *guards], value, zero]
    value = _as(value, loaded, summed)
    if kind != "pool":
        sizes = {**extents, **taps}
        weight = d.operand(["f", "c", *taps] if kind == "conv" else ["c", *taps], sizes, loaded)
        value = ["call", "mul", value, _as(weight, loaded, summed)]
    axes = {n: extents[n] for n in names}
    reduced = {**({"c": extents["c"]} if kind == "conv" else {}), **taps}
    stages = [_stage("T0", axes, reduced, "max" if kind == "pool" and d.chance(50) else "sum", value)]
    return [*stages, *_epilogue(d, axes, summed)]


def _rows(d: _Draw) -> list[Data]:
    """Return reductions over some axes, anywhere among the others, and perhaps what the row is with their results."""
    names = ["i", "j", "k", "l"][: d.one((1, 2, 3, 4))]
    extents = d.extents(names)
    reduced = {n: extents[n] for n in names if d.chance(50)} or {names[-1]: extents[names[-1]]}
    axes = {n: extents[n] for n in names if n not in reduced} or {"one": 1}
    loaded, summed = d.one(PAIRS)
    value = _as(d.operand(names, extents, loaded), loaded, summed)
    stages = [_stage("T0", axes, reduced, d.one(("sum", "max", "min")), value)]
    if d.chance(30):  # another result of the same rows
        stages.append(_stage("T1", axes, reduced, "sum", ["call", "mul", value, value]))
    if d.chance(40):  # as wide as a row
        every = {**axes, **reduced}
        last: Data = ["call", "sub", value, ["load", "T0", list(axes)]]
        stages.append(_stage(f"T{len(stages)}", {n: every[n] for n in d.permuted(list(every))}, {}, None, last))
    return stages


def _stream(d: _Draw) -> list[Data]:
    names = ["i", "j", "k"][: d.one((1, 2, 3))]
    extents = d.extents(names)
    dtype = d.one((*(p[0] for p in PAIRS), "bool"))
    value = d.operand(names, extents, dtype)
    if d.chance(60):
        other = d.operand([n for n in names if d.chance(60)] or names[:1], extents, dtype)
        value = ["call", "max", value, other]
    axes = {n: extents[n] for n in d.permuted(names)}
    stages = [_stage("T0", axes, {}, None, value)]
    if d.chance(40):
        again = ["call", "max", ["load", "T0", list(axes)], d.operand(names, extents, dtype)]
        stages.append(_stage("T1", {n: extents[n] for n in d.permuted(names)}, {}, None, again))
    return stages


KINDS: dict[str, Callable[[_Draw], list[Data]]] = {
    "product": _product, "window": _window, "rows": _rows, "stream": _stream,
}  # fmt: skip


@st.composite
def structured(draw: Any, kinds: Sequence[str] = tuple(KINDS)) -> Data:
    """Draw an expression of one of :data:`KINDS`."""
    d = _Draw(draw)
    stages = KINDS[d.one(kinds)](d)
    outputs = [s["name"] for s in stages[:-1] if d.chance(40)] + [stages[-1]["name"]]
    # A reduction nobody reads is there for its result.
    read = {n[1] for s in stages for n in _loads(s["body"])}
    outputs = [s["name"] for s in stages if s["name"] in outputs or s["name"] not in read]
    return live({"inputs": d.inputs, "stages": stages, "outputs": outputs})


def _loads(scalar: Data) -> list[Data]:
    if not isinstance(scalar, list) or not scalar:
        return []
    return ([scalar] if scalar[0] == "load" else []) + [x for part in scalar[1:] for x in _loads(part)]
