"""Hypothesis strategies of expressions: users' own, of one to five stages, as plain data (:mod:`tests.fuzz.language`).

An index is drawn freely and then made to fit its tensor: a new input gets the shape the index needs, or a smaller one
and
a guard around the load; an index into a tensor that is there is shifted, wrapped by ``%``, or guarded. So nearly every
draw is a case, and what shrinks stays one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.language import COMBINERS, DTYPES, FLOATS, FUNCTIONS, Data, dtype_of, live

#: Extents that templates treat differently: units, primes, tails of vectors, next to tiles.
SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 15, 16, 17, 23, 31, 32, 33)
MIDDLE = (*SMALL, 37, 47, 63, 64, 65, 97, 100, 127, 128, 129, 191, 255, 257, 384, 513, 1000, 1031)
LARGE = (4097, 10007, 50257, 65537, 131072, 200003, 1000003)
#: Functions whose intervals stay narrow on numbers of a few units; the others are drawn, but less often.
_TAME = ("add", "sub", "mul", "max", "min", "neg", "abs", "add", "mul")


@dataclass(frozen=True)
class Limits:
    """What a case may cost.

    Parameters
    ----------
    points
        Points of a stage, its reduction included.
    elements
        Elements of a tensor.
    stages, depth
        Stages, and operations above each other in one.
    extents, large
        What extents are drawn from, and whether one axis may be of :data:`LARGE`.
    """

    points: int = 1 << 15
    elements: int = 1 << 15
    stages: int = 4
    depth: int = 3
    extents: tuple[int, ...] = MIDDLE
    large: bool = False


QUICK = Limits(points=1 << 12, elements=1 << 12, stages=3, depth=2)
WIDE = Limits(points=1 << 21, elements=1 << 21, stages=5, large=True)


@dataclass
class _State:
    """Tensors so far, and what is being drawn."""

    draw: Any
    limits: Limits
    inputs: list[Data] = field(default_factory=list)
    stages: list[Data] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    narrow: bool = True

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(tuple(options)))

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self, percent: int) -> bool:
        """Return whether something less plain is drawn; shrinks to the plain."""
        return self.draw(st.integers(0, 99)) >= 100 - percent


@st.composite
def expressions(draw: Any, limits: Limits = QUICK) -> Data:
    """Draw an expression."""
    s = _State(draw, limits)
    count = s.number(1, limits.stages)
    main = s.one(("float32",) * 5 + DTYPES)
    for n in range(count):
        s.stages.append(_stage(s, n, main))
    last = s.stages[-1]["name"]
    outputs = [st_["name"] for st_ in s.stages[:-1] if s.chance(12)] + [last]
    return live({"inputs": s.inputs, "stages": s.stages, "outputs": outputs})


def _stage(s: _State, number: int, main: str) -> Data:
    s.axes = {}
    axes = [(f"i{d}", n) for d, n in enumerate(_extents(s, s.number(1, 4), s.limits.points))]
    left = s.limits.points
    for _, n in axes:
        left //= n
    reduces = left > 1 and s.chance(50)
    inner = [(f"r{d}", n) for d, n in enumerate(_extents(s, s.number(1, 3), min(left, 1 << 14)))] if reduces else []
    s.axes = dict([*axes, *inner])
    dtype = main if s.chance(75) else s.one(DTYPES)
    body = _scalar(s, dtype, s.number(0, s.limits.depth))
    if s.stages and not any(x in str(body) for x in (f"'{s.stages[-1]['name']}'",)):
        body = _joined(s, body, dtype)
    combine = s.one(COMBINERS) if inner else None
    if combine == "prod":
        combine = "prod" if s.chance(50) else "sum"
    if dtype_of(body, s.dtypes) == "bool" and combine in ("sum", "prod") and not s.chance(10):
        combine = "max"  # of truth values neither is a number
    name = f"T{number}"
    s.dtypes[name] = dtype_of(body, s.dtypes)
    s.shapes[name] = tuple(n for _, n in axes)
    return {
        "name": name,
        "axes": [list(a) for a in axes],
        "reduce": [list(a) for a in inner],
        "combine": combine,
        "body": body,
    }


def _joined(s: _State, body: Data, dtype: str) -> Data:
    """Return a body that reads the stage before too: chains are what stages are for."""
    last = _as(s, _load(s, s.stages[-1]["name"]), dtype)
    return last if body[0] == "load" and s.chance(50) else ["call", "max" if dtype == "bool" else "add", body, last]


def _extents(s: _State, count: int, budget: int) -> list[int]:
    out = []
    big = s.limits.large and s.chance(20)
    for n in range(count):
        options = [e for e in (LARGE if big and n == 0 else s.limits.extents) if e <= max(1, budget)] or [1]
        e = s.one(options)
        budget //= e
        out.append(e)
    return out if not s.chance(50) else out[::-1]


def _scalar(s: _State, dtype: str, depth: int) -> Data:
    """Draw a scalar of a dtype."""
    if depth == 0 or s.chance(15):
        return _leaf(s, dtype)
    kind = s.one(("call", "call", "call", "cast", "choose", "choose"))
    if kind == "cast":
        return ["cast", dtype, _scalar(s, s.one([d for d in DTYPES if d != dtype]), depth - 1)]
    if kind == "choose":
        yes, no = _scalar(s, dtype, depth - 1), _scalar(s, dtype, depth - 1)
        return ["choose", s.one(("if_then_else", "Select")), _condition(s, depth), yes, no]
    if dtype == "bool":
        return ["call", s.one(("max", "min")), _scalar(s, dtype, depth - 1), _scalar(s, dtype, depth - 1)]
    sort = "float" if dtype in FLOATS else "int"
    names = [n for n, (_, of) in FUNCTIONS.items() if of in (sort, "both")]
    if dtype == "uint8":
        names = [n for n in names if n not in ("neg", "abs")]
    fn = s.one([n for n in _TAME if n in names]) if not s.chance(40) else s.one(names)
    return ["call", fn, *(_scalar(s, dtype, depth - 1) for _ in range(FUNCTIONS[fn][0]))]


def _leaf(s: _State, dtype: str) -> Data:
    kind = s.one(("load",) * 8 + ("const", "position"))
    if kind == "const":
        return _const(s, dtype)
    if kind == "position" and dtype not in ("bool",):
        return ["position", _index(s, 1), dtype]
    return _as(s, _load(s, _source(s, dtype)), dtype)


def _const(s: _State, dtype: str) -> Data:
    if dtype in FLOATS:
        return ["const", s.one((0.0, 1.0, 0.5, -2.0, 3.25, -0.125)), dtype]
    return ["const", s.number(0, 1) if dtype == "bool" else s.number(0 if dtype == "uint8" else -7, 9), dtype]


def _as(s: _State, value: Data, dtype: str) -> Data:
    return value if dtype_of(value, s.dtypes) == dtype else ["cast", dtype, value]


def _source(s: _State, dtype: str) -> str:
    """Return a tensor to read: one that is there, or a new input whose shape its index decides."""
    there = list(s.shapes)
    if there and s.chance(45):
        return s.one(there)
    name = f"X{len(s.inputs)}"
    s.dtypes[name] = dtype if not s.chance(20) else s.one((*DTYPES, "float16"))
    return name


def _load(s: _State, tensor: str) -> Data:
    """Return a load with the guards it needs around it."""
    guards: list[Data] = []
    if tensor in s.shapes:
        index = [_fitted(s, n, guards) for n in s.shapes[tensor]]
    else:
        index = _new_input(s, tensor, guards)
    value: Data = ["load", tensor, index]
    if not guards:
        return value
    other = _const(s, s.dtypes[tensor]) if not s.chance(25) else _as(s, _plain_load(s), s.dtypes[tensor])
    return _guarded(s, guards, value, other)


def _plain_load(s: _State) -> Data:
    """Return a load that needs no guard: of a new input read by one axis, or of none."""
    name, axis = f"X{len(s.inputs)}", s.one(s.axes)
    s.inputs.append([name, [s.axes[axis]], "float32"])
    s.shapes[name], s.dtypes[name] = (s.axes[axis],), "float32"
    return ["load", name, [axis]]


def _new_input(s: _State, name: str, guards: list[Data]) -> list[Data]:
    index, shape, elements = [], [], 1
    free = list(s.axes)
    for _ in range(s.number(1, 4)):
        if free and not s.chance(35):
            i: Data = free.pop(s.number(0, len(free) - 1) if s.chance(50) else 0)
        else:
            i = _index(s, 2)
        low, high = reach(i, s.axes)
        size = high - low + 1
        if elements * size > s.limits.elements:
            i, size, low = 0, 1, 0
        if low < 0 or (low > 0 and s.chance(50)):
            i, low, high = _plus(i, -low), 0, high - low
            size = high + 1
        else:
            size = low + size
        if size > 2 and elements * size <= s.limits.elements and s.chance(20):
            size, i = _guards(s, i, size, guards)
        if elements * size > s.limits.elements:
            i, size = 0, 1
        index.append(i)
        shape.append(size + (s.number(1, 3) if s.chance(10) else 0))
        elements *= shape[-1]
    s.inputs.append([name, shape, s.dtypes[name]])
    s.shapes[name] = tuple(shape)
    return index


def _guards(s: _State, i: Data, size: int, guards: list[Data]) -> tuple[int, Data]:
    """Cut a dimension short of what its index reaches, or move the index out of it; add the guard that holds it in."""
    shift = s.number(0, min(4, size - 2))
    small = s.number(1, size - 1) if s.chance(70) else size
    i = _plus(i, -shift)
    low, high = reach(i, s.axes)
    if low < 0:
        guards.append(_bound(s, i, 0, True))
    if high >= small:
        guards.append(_bound(s, i, small, False))
    return small, i


def _bound(s: _State, i: Data, limit: int, below: bool) -> Data:
    """Return ``i >= limit`` or ``i < limit`` in one of the ways people write it."""
    way = s.number(0, 3)
    if below:
        return (["ge", i, limit], ["le", limit, i], ["gt", i, limit - 1], ["not", ["lt", i, limit]])[way]
    return (["lt", i, limit], ["gt", limit, i], ["le", i, limit - 1], ["not", ["ge", i, limit]])[way]


def _guarded(s: _State, guards: list[Data], value: Data, other: Data) -> Data:
    how = s.one(("if_then_else", "if_then_else", "Select"))
    form = s.number(0, 3)
    if form == 0 or len(guards) == 1:
        out: Data = ["choose", how, ["all", *guards] if len(guards) > 1 else guards[0], value, other]
    elif form == 1:
        out = value
        for g in guards:
            out = ["choose", how, g, out, other]
    elif form == 2:
        out = ["choose", how, ["any", *(["not", g] for g in guards)], other, value]
    else:
        out = ["choose", how, ["not", ["all", *guards]], other, value]
    if s.chance(25):  # a condition that a simplifier may take for implied by the guard, or the other way round
        rest = _const(s, dtype_of(value, s.dtypes))
        out = ["choose", s.one(("if_then_else", "Select")), _condition(s, 1), out, rest]
    return out


def _condition(s: _State, depth: int) -> Data:
    kind = s.one(("compare", "compare", "compare", "all", "any", "not", "less"))
    if kind in ("all", "any") and depth > 0:
        return [kind, *(_condition(s, depth - 1) for _ in range(2))]
    if kind == "not" and depth > 0:
        return [kind, _condition(s, depth - 1)]
    if kind == "less" and depth > 0:
        dtype = s.one(("float32", "int32", "float16"))
        return [kind, _scalar(s, dtype, 0), _scalar(s, dtype, 0)]
    i = _index(s, 1)
    low, high = reach(i, s.axes)
    return [s.one(("lt", "le", "gt", "ge", "eq", "ne")), i, s.number(low, max(low, high))]


def _fitted(s: _State, size: int, guards: list[Data]) -> Data:
    """Return an index into a dimension that is there."""
    same = [a for a, n in s.axes.items() if n == size]
    if same and not s.chance(30):
        return s.one(same)
    if size == 1 and not s.chance(20):
        return 0
    i = _index(s, 2)
    low, high = reach(i, s.axes)
    if low < 0 or high >= size:
        i = _plus(i, -low)
        high -= low
    if high < size:
        return i
    if s.chance(40):
        guards.append(_bound(s, i, size, False))
        return i
    return ["%", i if isinstance(i, str) or s.chance(10) else s.one(s.axes), size]


def _index(s: _State, depth: int) -> Data:
    """Draw a (quasi-)affine index of the axes."""
    axis = s.one(s.axes)
    kind = s.one(("axis", "scaled", "sum", "window", "back", "//", "%", "//%", "constant")) if depth else "axis"
    if kind == "axis":
        return axis
    if kind == "constant":
        return s.number(0, 3)
    if kind == "scaled":
        return ["*", axis, s.number(2, 4)]
    if kind == "sum":
        return ["+", _index(s, depth - 1), _index(s, depth - 1)]
    if kind == "window":
        return ["+", ["*", axis, s.number(1, 3)], ["*", s.one(s.axes), s.number(1, 2)]]
    if kind == "back":
        return ["-", s.axes[axis] - 1, axis]
    by = s.number(2, 9) if not s.chance(15) else s.number(2, max(2, s.axes[axis]))
    inner = axis if not s.chance(8) else _index(s, depth - 1)
    low, _ = reach(inner, s.axes)
    inner = _plus(inner, -low) if low < 0 else inner
    if kind == "//%":
        return ["%", ["//", inner, by], s.number(2, 7)]
    return [kind, inner, by]


def _plus(i: Data, by: int) -> Data:
    if by == 0:
        return i
    if isinstance(i, int):
        return i + by
    return ["+", i, by] if by > 0 else ["-", i, -by]


def reach(i: Data, extents: dict[str, int]) -> tuple[int, int]:
    """Return the least and the largest value an index may have, by intervals."""
    if isinstance(i, int):
        return i, i
    if isinstance(i, str):
        return 0, extents[i] - 1
    (a, b), (c, d) = reach(i[1], extents), reach(i[2], extents)
    if i[0] == "+":
        return a + c, b + d
    if i[0] == "-":
        return a - d, b - c
    if i[0] == "*":
        ends = (a * c, a * d, b * c, b * d)
        return min(ends), max(ends)
    if i[0] == "//":
        return a // c, b // c
    return (a, b) if a >= 0 and b < c else (0, c - 1)
