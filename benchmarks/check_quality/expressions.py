"""Random expressions: functions of every kind, quasi-affine accesses, guards, casts, sums, extrema, several stages."""

from __future__ import annotations

import numpy as np

from roller.expr import FUNCTIONS, Axis, Bound, Call, Cast, Const, Index, Load, Scalar, Stage, Tensor, TensorExpr, Term

_UNARY = [f for f, known in FUNCTIONS.items() if known.arity == 1 and f != "isnan"]
_BINARY = ("add", "sub", "mul", "max", "min", "div", "add", "mul", "pow", "fmod")
_COMPARISONS = ("lt", "le", "eq")
_FLOATS = ("float32", "float32", "float32", "float16", "float64")


class Making:
    """One random expression in the making.

    Parameters
    ----------
    rng
        Decides everything.
    points
        Stage points of the largest stage, about.
    """

    def __init__(self, rng: np.random.Generator, points: int) -> None:
        self.rng, self.points = rng, points
        self.inputs: list[Tensor] = []

    def expression(self) -> TensorExpr:
        """Return the expression: one stage, or a reduction and what is made of it."""
        rng = self.rng
        rank = int(rng.integers(1, 4))
        side = max(2, round(self.points ** (1 / rank)))
        axes = [Axis(f"a{d}", int(rng.integers(max(1, side // 2), side + 2))) for d in range(rank)]
        kind = str(rng.choice(["point", "point", "sum", "sum", "max", "min", "prod", "row", "first"]))
        dtype = str(rng.choice(_FLOATS))
        if kind == "point":
            stages = [self._pointwise("Y", axes, dtype, ())]
        elif kind in ("row", "first"):
            stages = self._row(axes, dtype, kind)
        else:
            stages = self._reduced(axes, dtype, kind)
        return TensorExpr(f"random_{kind}", tuple(self.inputs), tuple(stages), (stages[-1].name,))

    def _reduced(self, axes: list[Axis], dtype: str, kind: str) -> list[Stage]:
        rng = self.rng
        deep = int(rng.choice([2, 3, 5, 17, 64, 130, 700])) if kind != "prod" else int(rng.integers(2, 6))
        spatial = [Axis(a.name, max(1, a.extent // (2 if len(axes) > 1 else deep))) for a in axes]
        every = (*spatial, Axis("r", deep, "reduction"))
        plain = kind == "sum" and rng.random() < 0.5
        body = self._product(every, dtype) if plain else self.scalar(every, dtype, 2)
        acc = "float32" if dtype == "float16" and rng.random() < 0.7 else dtype
        store = tuple(Index((Term(a.name),)) for a in spatial)
        shape = tuple(a.extent for a in spatial)
        if rng.random() < 0.5:
            return [Stage(Tensor("Y", shape, acc), every, store, body, kind, acc)]
        first = Stage(Tensor("T", shape, acc), every, store, body, kind, acc)
        return [first, self._pointwise("Y", spatial, acc, (Load("T", store),))]

    def _product(self, axes: tuple[Axis, ...], dtype: str) -> Scalar:
        wide = "float32" if dtype == "float16" else dtype
        loads = [self._load(axes, dtype) for _ in range(2)]
        return Call("mul", tuple(Cast(wide, ld) if wide != dtype else ld for ld in loads))

    def _row(self, axes: list[Axis], dtype: str, kind: str) -> list[Stage]:
        """Return a value of rows and what it makes of their elements, or where the largest element is."""
        rows, last = axes[:-1], axes[-1]
        every = (*rows, Axis(last.name, last.extent, "reduction"))
        shape = tuple(a.extent for a in axes)
        at = tuple(Index((Term(a.name),)) for a in axes)
        made = Stage(Tensor("E", shape, dtype), tuple(axes), at, self.scalar(tuple(axes), dtype, 2), None, dtype)
        load = Load("E", at)
        best = Stage(Tensor("M", shape[:-1], dtype), every, at[:-1], load, "max", dtype)
        if kind == "first":
            from roller.expr import IndexValue

            hit = Call("eq", (load, Load("M", at[:-1])))
            where = Call("select", (hit, IndexValue(at[-1], "int32"), Const(2**31 - 1, "int32")))
            return [made, best, Stage(Tensor("Y", shape[:-1], "int32"), every, at[:-1], where, "min", "int32")]
        less = Call("exp", (Call("sub", (load, Load("M", at[:-1]))),))
        total = Stage(Tensor("S", shape[:-1], dtype), every, at[:-1], less, "sum", dtype)
        body = Call("div", (less, Load("S", at[:-1])))
        return [made, best, total, Stage(Tensor("Y", shape, dtype), tuple(axes), at, body, None, dtype)]

    def _pointwise(self, name: str, axes: list[Axis], dtype: str, given: tuple[Scalar, ...]) -> Stage:
        rng = self.rng
        body = self.scalar(tuple(axes), dtype, 3, given)
        out = dtype
        choice = rng.random()
        if choice < 0.2:
            step = str(rng.choice(["floor", "round", "trunc", "ceil"]))
            scaled = Call("mul", (body, Const(float(rng.choice([1.0, 7.0, 50.0])), dtype)))
            body, out = Cast("int32", Call("min", (Call("max", (Call(step, (scaled,)), Const(-1e4, dtype))),
                                                  Const(1e4, dtype)))), "int32"  # fmt: skip
        elif choice < 0.35:
            out = str(rng.choice(["float64", "float32", "float16"]))
            body = Cast(out, body)
        store = tuple(Index((Term(a.name),)) for a in axes)
        return Stage(Tensor(name, tuple(a.extent for a in axes), out), tuple(axes), store, body, None, out)

    def scalar(self, axes: tuple[Axis, ...], dtype: str, depth: int, given: tuple[Scalar, ...] = ()) -> Scalar:
        """Return a random tree over loads of new inputs, ``given`` ones and constants."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            if given and rng.random() < 0.8:
                return given[int(rng.integers(len(given)))]
            if rng.random() < 0.25:
                return Const(float(rng.choice([0.1, 1.0, 2.0, -0.5, 1 / 3, 1e-3, 40.0])), dtype)
            return self._load(axes, dtype)
        choice = rng.random()
        if choice < 0.42:
            fn = str(rng.choice(_UNARY))
            return Call(fn, (self.scalar(axes, dtype, depth - 1, given),))
        if choice < 0.85:
            fn = str(rng.choice(_BINARY))
            return Call(fn, tuple(self.scalar(axes, dtype, depth - 1, given) for _ in range(2)))
        test = Call(str(rng.choice(_COMPARISONS)), tuple(self.scalar(axes, dtype, depth - 1, given) for _ in range(2)))
        return Call("select", (test, *(self.scalar(axes, dtype, depth - 1, given) for _ in range(2))))

    def _load(self, axes: tuple[Axis, ...], dtype: str) -> Load:
        """Return a read of a new input through a random access of some axes, guarded at times."""
        rng = self.rng
        extents = {a.name: a.extent for a in axes}
        index, shape, guard = [], [], []
        for a in axes:
            if rng.random() < 0.15 and len(axes) > 1:
                continue
            i = self._index(a, axes)
            low, high = i.range(extents)
            i = Index(i.terms, i.const - low)
            size = high - low + 1
            if rng.random() < 0.2:
                pad = int(rng.integers(1, 3))
                i = Index(i.terms, i.const - pad)
                size = max(1, size - 2 * pad)
                guard.append(Bound(i, 0, size))
            index.append(i)
            shape.append(size)
        if not index:
            index, shape = [Index()], [1]
        name = f"X{len(self.inputs)}"
        self.inputs.append(Tensor(name, tuple(shape), dtype))
        return Load(name, tuple(index), tuple(guard))

    def _index(self, axis: Axis, axes: tuple[Axis, ...]) -> Index:
        rng = self.rng
        choice, n = rng.random(), axis.extent
        if choice < 0.6:
            return Index((Term(axis.name),))
        by = int(rng.integers(2, max(3, n)))
        if choice < 0.7:
            return Index((Term(axis.name, 1, by), Term(axis.name, -1, by + int(rng.integers(1, 4)))))
        if choice < 0.8:
            return Index((Term(axis.name, 1, by), Term(axis.name, 2, 1, int(rng.integers(2, 7)))))
        if choice < 0.9:
            other = axes[int(rng.integers(len(axes)))]
            return Index((Term(axis.name, -1),)) if other == axis else Index((Term(axis.name, 2), Term(other.name)))
        return Index((Term(axis.name, 1, 1, by),))


def random_expression(seed: int, points: int = 3000) -> TensorExpr:
    """Return the expression of a seed."""
    return Making(np.random.default_rng(seed), points).expression()
