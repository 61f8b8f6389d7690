"""Conversion of TVM scalar expressions to scalar trees, with element-wise producers inlined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from roller.errors import ExprError
from roller.expr import (
    FUNCTIONS,
    OFFSET_ELEMENTS,
    Call,
    Cast,
    Const,
    Index,
    IndexValue,
    Load,
    Scalar,
    Tensor,
    loads,
    transform_scalar,
    walk_scalar_tree,
)
from roller.expr.compose_stages import common_dtype_of_scalar as computed_dtype
from roller.expr.index_bound_proofs import HalfBound, add_provable_guards
from roller.te.affine import (
    AxisSpace,
    NotAffineError,
    alternative_bounds,
    attach_bounds,
    combine_alternatives,
    comparison_as_bound,
    implied_bounds,
    untileable_index_error,
)
from roller.te.compat import Call as TvmCall
from roller.te.compat import TensorLoad, dtype_of, tirx
from roller.te.opaque_floats import hide_value, reveal_value
from roller.te.read_primfunc_blocks import LoopNestBlock, subexpressions
from roller_runtime.core.dtypes import round_to_dtype

Env = Mapping[Any, Any]

#: Maximum number of nodes in a stage's body; inlining that would exceed it is rejected.
_MAX_NODES = 20_000

_BINARY = (
    (tirx.Add, "add"), (tirx.Sub, "sub"), (tirx.Mul, "mul"), (tirx.Div, "div"), (tirx.Max, "max"), (tirx.Min, "min"),
    (tirx.EQ, "eq"), (tirx.LT, "lt"), (tirx.LE, "le"), (tirx.BitwiseAnd, "bitand"), (tirx.BitwiseOr, "bitor"),
    (tirx.BitwiseXor, "bitxor"), (tirx.LShift, "shl"), (tirx.RShift, "shr"), (tirx.Mod, "imod"),
)  # fmt: skip

#: Scalar function of each TVM intrinsic.
_INTRINSICS = {
    **{f"tirx.{n}": n for n in ("exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "pow", "floor", "ceil")},
    **{
        f"tirx.{n}": n for n in ("sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh")
    },
    **{f"tirx.{n}": n for n in ("trunc", "isnan", "fmod", "log1p")},
    **{f"roller.{n}": n for n in ("expm1", "log1p")},
    "tirx.nearbyint": "round",
    "tirx.fabs": "abs",
    "prim.ceil": "ceil",
    "prim.floor": "floor",
}


class StageConverter:
    """Converts the body of one stage to a scalar tree.

    Parameters
    ----------
    name
        Name of the stage's tensor, for messages.
    tensors
        Tensors by buffer; an absent buffer is inlined from ``blocks``.
    blocks
        Blocks by the buffer they write.
    extremum
        The stage's combiner if it is ``max`` or ``min``; the extreme finite padding value then acts as an infinity.
    """

    def __init__(
        self, name: str, space: AxisSpace, tensors: Mapping[Any, Tensor], blocks: Mapping[Any, LoopNestBlock],
        extremum: str | None,
    ) -> None:  # fmt: skip
        self.name, self.space, self.tensors, self.blocks, self.extremum = name, space, tensors, blocks, extremum
        self._nodes = 0
        #: Conditions around the node that is being converted, and whether they hold there.
        self._known: list[tuple[Any, bool]] = []

    def body(self, e: Any) -> Scalar:
        """Return the value of a stage as a scalar tree with the guards that its accesses need."""
        by_name = {t.name: t for t in self.tensors.values()}

        def leaf(n: Scalar) -> Scalar:
            return add_provable_guards(n, by_name[n.tensor].shape, (), self.space.extents) if isinstance(n, Load) else n

        return transform_scalar(self.scalar(e, {}), leaf)

    def scalar(self, e: Any, env: Env) -> Scalar:
        """Return ``e``, with ``env`` substituted, as a scalar tree."""
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise ExprError(
                f"tensor '{self.name}': inlining its element-wise producers gives more than {_MAX_NODES} operations. "
                "Split the computation into several expressions."
            )
        if isinstance(e, (tirx.IntImm, tirx.FloatImm)):
            return Const(e.value, dtype_of(e))
        if isinstance(e, TensorLoad):
            return self._load(e, env)
        if _is_integer(e) and not _reads_data(e):
            return self._convert_axis_arithmetic(e, env, dtype_of(e))
        if isinstance(e, tirx.Cast):
            return self._convert_cast(e, env)
        if isinstance(e, tirx.Select):
            return self._convert_choice(e.condition, e.true_value, e.false_value, env)
        if isinstance(e, TvmCall):
            return self._convert_intrinsic(e, env)
        return self._convert_arithmetic(e, env)

    def _convert_arithmetic(self, e: Any, env: Env) -> Scalar:
        for node, fn in _BINARY:
            if isinstance(e, node):
                fn = "idiv" if fn == "div" and _is_integer(e) else fn
                a, b = self.scalar(e.a, env), self.scalar(e.b, env)
                return Call("neg", (a,)) if fn == "mul" and isinstance(b, Const) and b.value == -1 else Call(fn, (a, b))
        if isinstance(e, (tirx.GT, tirx.GE)):
            return Call("lt" if isinstance(e, tirx.GT) else "le", (self.scalar(e.b, env), self.scalar(e.a, env)))
        yes, no = Const(1, "bool"), Const(0, "bool")
        if isinstance(e, tirx.And):
            return self._convert_choice(e.a, e.b, tirx.const(False, "bool"), env)
        if isinstance(e, tirx.Or):
            return self._convert_choice(e.a, tirx.const(True, "bool"), e.b, env)
        if isinstance(e, tirx.NE):
            return Call("select", (self.scalar(tirx.EQ(e.a, e.b), env), no, yes))
        if isinstance(e, tirx.Not):
            return Call("select", (self.scalar(e.a, env), no, yes))
        if isinstance(e, tirx.Var):
            raise ExprError(f"tensor '{self.name}': '{e.name}' is symbolic. Give it a value before compiling.")
        raise ExprError(
            f"tensor '{self.name}': {type(e).__name__} on {dtype_of(e)} is outside the supported scalar functions. "
            f"Use {sorted(FUNCTIONS)}."
        )

    def _convert_intrinsic(self, e: Any, env: Env) -> Scalar:
        name = e.op.name if hasattr(e.op, "name") else str(e.op)
        if name == "prim.if_then_else":
            return self._convert_choice(e.args[0], e.args[1], e.args[2], env)
        if name == "tirx.likely":
            return self.scalar(e.args[0], env)
        if name not in _INTRINSICS:
            raise ExprError(
                f"tensor '{self.name}': intrinsic '{name}' is outside the supported scalar functions. "
                f"Use {sorted(FUNCTIONS)}."
            )
        return Call(_INTRINSICS[name], tuple(self.scalar(a, env) for a in e.args))

    def _convert_cast(self, e: Any, env: Env) -> Scalar:
        to, inner = dtype_of(e), e.value
        if dtype_of(inner) == to:
            return self.scalar(inner, env)
        if "int" in to and _is_integer(inner) and not _reads_data(inner):
            return self._convert_axis_arithmetic(inner, env, to)
        return Cast(to, self.scalar(inner, env))

    def _convert_axis_arithmetic(self, e: Any, env: Env, dtype: str) -> Scalar:
        """Return integer arithmetic on axes as the value of an index, or node by node if it is not an index."""
        try:
            index = self.space.index(e, env)
        except NotAffineError as reason:
            if isinstance(e, tirx.Cast) and _is_integer(e.value):  # the value overflows its dtype and wraps around
                value: Scalar = Cast(dtype_of(e), self._convert_axis_arithmetic(e.value, env, dtype_of(e.value)))
                return value if dtype == dtype_of(e) else Cast(dtype, value)
            if isinstance(e, (tirx.Var, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)):
                raise ExprError(
                    f"tensor '{self.name}': a position used as a value cannot be read: {reason}. "
                    "Use sums of constant multiples of axes, or // and % of one axis."
                ) from reason
            parts = e.value if isinstance(e, tirx.Cast) else e
            if isinstance(parts, tirx.Select):
                return self._convert_choice(parts.condition, parts.true_value, parts.false_value, env)
            out = self._convert_arithmetic(parts, env)
            return out if dtype == dtype_of(parts) else Cast(dtype, out)
        return self._index_as_value(index, dtype) if index.terms else Const(index.const, dtype)

    def _index_as_value(self, index: Index, dtype: str) -> Scalar:
        """Return the value of an index; beyond 32 bits (the kernels' index type), it is computed term by term."""
        low, high = index.range(self.space.extents)
        if dtype != "int64" or max(abs(low), abs(high)) < OFFSET_ELEMENTS:
            return IndexValue(index, dtype)
        total: Scalar = Const(index.const, dtype)
        for t in index.terms:
            position = IndexValue(Index((replace(t, coef=1),)), dtype)
            total = Call("add", (total, Call("mul", (position, Const(t.coef, dtype)))))
        return total

    def _load(self, e: Any, env: Env) -> Scalar:
        producer = self.blocks.get(e.source)
        if e.source not in self.tensors:
            assert producer is not None
            at = {v: self.space.simplify(i, env) for v, i in zip(producer.store, e.indices, strict=True)}
            inner = {v: at.get(v, tirx.const(0, "int32")) for v, _, _ in producer.variables}
            return self.scalar(producer.value, inner)
        tensor = self.tensors[e.source]
        index = []
        for d, i in enumerate(e.indices):
            try:
                index.append(self.space.index(i, env))
            except NotAffineError as reason:
                raise untileable_index_error(tensor.name, self.name, d, str(reason)) from reason
        load = Load(tensor.name, tuple(index))
        if not self._known or _load_stays_inside_tensor(load, tensor, self.space.extents):
            return load
        # The caller turns bounds common to all alternatives into guards; only here are the alternatives themselves
        # known.
        known = self._enclosing_alternatives()
        return add_provable_guards(load, tensor.shape, known, self.space.extents) if len(known) > 1 else load

    def _enclosing_alternatives(self) -> list[list[HalfBound]]:
        """Return alternatives, at least one of which is true where the enclosing conditions hold."""
        out: list[list[HalfBound]] = [[]]
        for condition, holds in self._known:
            out = combine_alternatives(out, alternative_bounds(self.space, condition, holds))
        return out

    @contextmanager
    def _where(self, condition: Any, holds: bool) -> Iterator[None]:
        self._known.append((condition, holds))
        yield
        self._known.pop()

    def _convert_choice(self, condition: Any, yes: Any, no: Any, env: Env) -> Scalar:
        """Return a selection: a guard if the condition bounds an access, else ``select``."""
        known = reveal_value(self.space.simplify(hide_value(condition), env))
        if isinstance(known, tirx.IntImm):
            return self.scalar(yes if int(known.value) else no, env)
        if _reads_data(condition):
            return self._convert_choice_by_data(condition, yes, no, env)
        with self._where(known, True):
            value = self.scalar(yes, env)
        with self._where(known, False):
            other = self.scalar(no, env)
        try:
            bounds = [comparison_as_bound(self.space, part, {}) for part in _operands_of_nested(known, tirx.And)]
        except NotAffineError:
            bounds = []
        if bounds and isinstance(other, Const):
            outside = self._extreme_to_infinity(float(other.value), other.dtype)
            for candidate in dict.fromkeys((outside, 0.0)):
                if _has_value_if_loads_are_filled(
                    value, candidate, outside, {t.name: t.dtype for t in self.tensors.values()}
                ):
                    return self._guarded(value, bounds, candidate)
        here = self._guarded(value, implied_bounds(self.space, known, True), None)
        elsewhere = self._guarded(other, implied_bounds(self.space, known, False), None)
        return Call("select", (self.scalar(known, {}), here, elsewhere))

    def _convert_choice_by_data(self, condition: Any, yes: Any, no: Any, env: Env) -> Scalar:
        """Return a selection by data, tested after any conditions on positions, which may keep loads within tensors."""
        # The condition is used as written: simplification drops the guards that its own parts imply.
        for kind, joined in ((tirx.And, tirx.all), (tirx.Or, tirx.any)):
            parts = _operands_of_nested(condition, kind)
            data = [p for p in parts if _reads_data(p)]
            places = [p for p in parts if not _reads_data(p)]
            if places:
                rest = tirx.if_then_else(joined(*data), yes, no)
                return self._convert_choice(joined(*places), *((rest, no) if kind is tirx.And else (yes, rest)), env)
        return Call("select", (self.scalar(condition, env), self.scalar(yes, env), self.scalar(no, env)))

    def _guarded(self, value: Scalar, bounds: list[HalfBound], outside: float | None) -> Scalar:
        by_name = {t.name: t for t in self.tensors.values()}

        def leaf(n: Scalar) -> Scalar:
            if not isinstance(n, Load):
                return n
            tensor = by_name[n.tensor]
            if outside is None and _load_stays_inside_tensor(n, tensor, self.space.extents):
                return n  # the enclosing selection drops the value, and a guard would prevent vectorization
            fill = (n.outside if n.guard else 0.0) if outside is None else outside
            return attach_bounds(n, bounds, fill, tensor, self.space.extents)

        return transform_scalar(value, leaf)

    def _extreme_to_infinity(self, value: float, dtype: str) -> float:
        """Return ``value``, or an infinity if it is the finite padding of the stage's own maximum or minimum."""
        sign = {"max": -1.0, "min": 1.0}.get(self.extremum or "")
        if sign is None or "float" not in dtype:
            return value
        limit = float(tirx.max_value(dtype).value)
        return sign * float("inf") if value * sign >= limit else value


def _has_value_if_loads_are_filled(value: Scalar, fill: float, wanted: float, dtypes: Mapping[str, str]) -> bool:
    """Return whether ``value`` is ``wanted`` if all its loads are ``fill``, so that guards on loads suffice."""
    # Conversions change a value: converting -0.125 to an integer and back gives 0.
    found = loads(value)
    if not found or any(isinstance(n, IndexValue) for n in walk_scalar_tree(value)):
        return False
    if any(ld.guard and ld.outside != fill for ld in found):
        return False

    def compute(n: Scalar) -> Any:
        if isinstance(n, Load):
            return round_to_dtype(fill, dtypes[n.tensor])
        if isinstance(n, Const):
            return np.float64(n.value)
        if isinstance(n, Cast):
            return round_to_dtype(compute(n.arg), n.dtype)
        assert isinstance(n, Call)
        return FUNCTIONS[n.fn].numpy(*(compute(a) for a in n.args))

    with np.errstate(all="ignore"):
        kind = computed_dtype(value, dtypes)
        return bool(compute(value) == (wanted if kind is None else round_to_dtype(wanted, kind)))


def _load_stays_inside_tensor(load: Load, tensor: Tensor, extents: Mapping[str, int]) -> bool:
    """Return whether every index of a load stays inside its tensor for all values of the axes."""
    ranges = [i.range(extents) for i in load.index]
    return all(low >= 0 and high < size for (low, high), size in zip(ranges, tensor.shape, strict=True))


def _operands_of_nested(e: Any, kind: Any) -> list[Any]:
    """Return the operands of nested ``And`` or ``Or`` nodes."""
    return [*_operands_of_nested(e.a, kind), *_operands_of_nested(e.b, kind)] if isinstance(e, kind) else [e]


def _is_integer(e: Any) -> bool:
    return "int" in dtype_of(e)


def _reads_data(e: Any) -> bool:
    return any(isinstance(x, TensorLoad) for x in subexpressions(e))
