"""Shared parts of operators: dtypes, argument checks and the fused epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller.errors import ExprError, did_you_mean, shown
from roller.expr import (
    REDUCTION,
    SPATIAL,
    Axis,
    Bound,
    Call,
    Cast,
    Const,
    Index,
    IndexValue,
    Load,
    Scalar,
    Stage,
    Tensor,
    TensorExpr,
    axis_index,
)
from roller.expr.tensor_expr import MOST_POINTS
from roller.ops.elementwise_functions import ALIASES, parse_element_function
from roller_runtime.core.dtypes import DTYPES, canonical_dtype_name, is_float


@dataclass(frozen=True)
class OperatorDtypes:
    """The dtypes of an operator: of stored inputs, of arithmetic and accumulation, and of the stored output."""

    storage: str
    acc: str
    out: str

    @property
    def is_float(self) -> bool:
        """Whether the arithmetic dtype is floating point."""
        return is_float(self.acc)

    def load(self, tensor: str, index: Sequence[Index], guard: tuple[Bound, ...] = (), outside: float = 0.0) -> Scalar:
        """Return a load of an element, converted to the arithmetic dtype if that differs."""
        return self.cast(Load(tensor, tuple(index), guard, outside if guard else 0.0))

    def cast(self, value: Scalar) -> Scalar:
        """Return a stored value, converted to the arithmetic dtype if that differs."""
        return value if self.storage == self.acc else Cast(self.acc, value)

    def require_float(self, where: str) -> None:
        """Raise an error if the arithmetic dtype is not floating point."""
        if not self.is_float:
            argument, given = ("acc_dtype", self.acc) if is_float(self.storage) else ("dtype", self.storage)
            raise ExprError(f"{where}: argument '{argument}': expected a floating-point dtype, got '{given}'. "
                            f"Pass {argument}='float32'.")  # fmt: skip

    def const(self, value: float) -> Const:
        """Return a literal of the arithmetic dtype; integers saturate."""
        if self.is_float:
            return Const(float(value), self.acc)
        if self.acc == "bool":
            return Const(float(value > 0), self.acc)
        info = np.iinfo(self.acc)
        return Const(min(max(int(value), info.min), info.max) if math.isfinite(value) else value, self.acc)

    def padding_value(self, sign: float) -> float:
        """Return the smallest (``sign`` is -1) or the largest (+1) value of the storage dtype, for padding."""
        row = DTYPES[self.storage]
        if row.is_float:
            return sign * (float("inf") if row.has_infinity else row.largest)
        if self.storage == "bool":
            return 0.0 if sign < 0 else 1.0
        info = np.iinfo(self.storage)
        return float(info.min if sign < 0 else info.max)


def resolve_dtypes(
    where: str, dtype: str, acc_dtype: str | None, out_dtype: str | None, *, widens: bool = False
) -> OperatorDtypes:
    """Resolve an operator's dtypes; with ``widens``, integer outputs default to the accumulator dtype."""
    dtype, acc_dtype, out_dtype = (
        canonical_dtype_name(dtype),
        canonical_dtype_name(acc_dtype),
        canonical_dtype_name(out_dtype),
    )
    given = (("dtype", dtype), ("acc_dtype", acc_dtype), ("out_dtype", out_dtype))
    for argument, value in given:
        if argument == "dtype" or value is not None:
            check_choice(where, argument, value, sorted(DTYPES), "dtype")
    acc = acc_dtype or DTYPES[dtype].accumulator
    # Sums and products of small integers would overflow the storage dtype.
    narrow = widens and not is_float(dtype) and dtype != acc
    out = out_dtype or (acc if narrow else dtype)
    if is_float(dtype) and not is_float(acc):
        raise ExprError(f"{where}: argument 'acc_dtype': expected a floating-point dtype beside dtype='{dtype}', whose "
                        f"fractions would be lost, got '{acc}'. Pass acc_dtype='float32'.")  # fmt: skip
    if acc == "bool" and dtype != "bool":
        raise ExprError(f"{where}: argument 'acc_dtype': expected a dtype of numbers beside dtype='{dtype}', got "
                        "'bool'. Compare with zero first where truth values are meant.")  # fmt: skip
    return OperatorDtypes(dtype, acc, out)


def check_choice(where: str, argument: str, value: Any, known: Iterable[str], what: str) -> str:
    """Return ``value`` if it is one of the ``known`` names; otherwise raise an ExprError that names the argument."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise ExprError(f"{where}: argument '{argument}': unknown {what} {shown(value)}{hint or '.'} "
                        f"Use one of {names}.")  # fmt: skip
    return value


def check_flag(where: str, argument: str, value: Any) -> bool:
    """Return ``value`` as a bool if it is a boolean, 0 or 1; otherwise raise an ExprError that names the argument."""
    if not isinstance(value, (bool, int, np.bool_, np.integer)) or value not in (0, 1):
        raise ExprError(f"{where}: argument '{argument}': expected True or False, got {shown(value)}.")
    return bool(value)


def normalize_function_names(where: str, argument: str, value: Any) -> tuple[str, ...]:
    """Return the name of one element-wise function, or the names of several, as a tuple without parsing them."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list)):
        raise ExprError(f"{where}: argument '{argument}': expected the name of a function or several, "
                        f"got {shown(value)}. Use for example 'relu' or ('bias', 'relu').")  # fmt: skip
    return tuple(names)


def extent(where: str, argument: str, value: Any, low: int = 1) -> int:
    """Return ``value`` as an int if it is an integer from ``low`` to ``MOST_POINTS``; otherwise raise an ExprError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ExprError(f"{where}: argument '{argument}': expected an integer of at least {low}, got {shown(value)}.")
    if value > MOST_POINTS:  # no tensor has as many elements, and Python does not print very long numbers
        raise ExprError(f"{where}: argument '{argument}': expected at most {MOST_POINTS}, got {shown(value)}. "
                        "Use a smaller number.")  # fmt: skip
    return int(value)


def check_finite_number(where: str, argument: str, value: Any, low: float = 0.0) -> float:
    """Return ``value`` as a float if it is a finite number of at least ``low``; otherwise raise an ExprError."""
    try:
        real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        out = float(value) if real else math.nan
    except OverflowError:  # an integer that no float can represent
        out = math.inf
    if not low <= out < math.inf:
        raise ExprError(f"{where}: argument '{argument}': expected a number of at least {low:g}, got {shown(value)}.")
    return out


def normalize_pair(where: str, argument: str, value: Any, low: int = 1) -> tuple[int, int]:
    """Return a pair of ints from ``value``: the pair itself, or one int used twice."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise ExprError(f"{where}: argument '{argument}': expected an int or a pair, got {shown(value)}.")
        return extent(where, argument, value[0], low), extent(where, argument, value[1], low)
    one = extent(where, argument, value, low)
    return one, one


def normalize_padding(where: str, value: Any) -> tuple[int, int, int, int]:
    """Return ``(top, bottom, left, right)`` from an int, an ``(h, w)`` pair or all four sides."""
    if isinstance(value, (tuple, list)) and len(value) == 4:
        top, bottom, left, right = (extent(where, "padding", v, 0) for v in value)
        return top, bottom, left, right
    if isinstance(value, (tuple, list)) and len(value) != 2:
        raise ExprError(
            f"{where}: argument 'padding': expected an int, a pair or (top, bottom, left, right), got {shown(value)}."
        )
    h, w = normalize_pair(where, "padding", value, 0)
    return h, h, w, w


def check_shape(where: str, value: Any, argument: str = "shape") -> tuple[int, ...]:
    """Return a shape as a tuple of positive ints; a single int is a one-dimensional shape."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, (tuple, list)) or not value:
        raise ExprError(
            f"{where}: argument '{argument}': expected a shape of at least one dimension, got {shown(value)}."
        )
    return tuple(extent(where, argument, v) for v in value)


def make_spatial_axes(*named: tuple[str, int]) -> tuple[Axis, ...]:
    """Return spatial axes from ``(name, extent)`` pairs."""
    return tuple(Axis(n, e, SPATIAL) for n, e in named)


def make_reduction_axes(*named: tuple[str, int]) -> tuple[Axis, ...]:
    """Return reduction axes from ``(name, extent)`` pairs."""
    return tuple(Axis(n, e, REDUCTION) for n, e in named)


def identity_indices(axes: Sequence[Axis | str]) -> tuple[Index, ...]:
    """Return one index per axis, equal to the axis itself."""
    return tuple(axis_index(a if isinstance(a, str) else a.name) for a in axes)


def ensure_spatial_axis(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return ``axes``, or one axis of extent 1 if there are none: every stage needs a spatial axis to tile."""
    return axes or (Axis("one", 1, SPATIAL),)


@dataclass(frozen=True)
class EpilogueChannel:
    """The channel index of a ``"bias"`` in blocked layouts, in which no single output dimension is the channel."""

    extent: int
    index: Index  #: Channel of a point; ``extent`` or more in the tail
    has_tail: bool  #: Whether the last block has a tail, into which the epilogue writes zeros

    @property
    def guard(self) -> tuple[Bound, ...]:
        """The bound that keeps the index within the channels; empty without a tail."""
        return (Bound(self.index, 0, self.extent),) if self.has_tail else ()


def compose_epilogue(
    name: str,
    inputs: Sequence[Tensor],
    stages: Sequence[Stage],
    t: OperatorDtypes,
    *,
    epilogue: Sequence[str] | str = (),
    channel: int | EpilogueChannel = -1,
) -> TensorExpr:
    """Return the operator, with the user's epilogue applied to the result of the last stage."""
    # An element-wise last stage absorbs the epilogue. A reduction gets a further element-wise stage, which reads
    # the sum in accumulator precision, so that the result is converted once.
    epilogue = normalize_function_names(name, "epilogue", epilogue)
    last = stages[-1]
    if not epilogue:
        return TensorExpr(name, tuple(inputs), tuple(stages), (last.name,))
    operands: list[Tensor] = []

    def ending(value: Scalar) -> Scalar:
        value, made = _compose_epilogue(name, value, epilogue, last, t, channel, {x.name for x in inputs})
        operands.extend(made)
        return value

    if last.combiner is not None:
        tail = reduction_and_ending_stages(last.output, last.axes, last.store, last.body, last.combiner, t, ending)
    else:
        tail = (Stage(last.output, last.axes, last.store, ending(last.body), None, t.acc),)
    return TensorExpr(name, (*inputs, *operands), (*stages[:-1], *tail), (last.name,))


def reduction_and_ending_stages(
    y: Tensor, axes: Sequence[Axis], store: Sequence[Index], body: Scalar, combiner: str, t: OperatorDtypes,
    ending: Callable[[Scalar], Scalar] | None = None, anchor: str = "",
) -> tuple[Stage, ...]:  # fmt: skip
    """Return the stages that reduce to ``y``; ``ending`` is applied to each total in accumulator precision."""
    axes, store = tuple(axes), tuple(store)
    if all(a.kind == REDUCTION for a in axes):
        axes = (*ensure_spatial_axis(()), *axes)
    if ending is None:
        return (Stage(y, axes, store, body, combiner, t.acc),)
    total = Tensor(anchor or f"{y.name}_acc", y.shape, t.acc)
    first = Stage(total, axes, store, body, combiner, t.acc)
    return first, Stage(y, first.spatial_axes, store, ending(Load(total.name, store)), None, t.acc)


def _compose_epilogue(
    name: str,
    value: Scalar,
    epilogue: tuple[str, ...],
    last: Stage,
    t: OperatorDtypes,
    channel: int | EpilogueChannel,
    taken: set[str],
) -> tuple[Scalar, list[Tensor]]:
    where = f"{name}: argument 'epilogue'"
    operands: list[Tensor] = []
    shape, store = last.output.shape, last.store

    def operand(base: str, dims: tuple[int, ...], index: tuple[Index, ...], guard: tuple[Bound, ...] = ()) -> Scalar:
        label, n = base, 1
        while label in taken:
            n += 1
            label = f"{base}{n}"
        taken.add(label)
        operands.append(Tensor(label, dims, t.storage))
        return t.load(label, index, guard)

    for step in epilogue:
        if step == "bias":
            if not shape:
                raise ExprError(f"{where}: 'bias' needs an output with at least one dimension. Use 'add'.")
            if isinstance(channel, EpilogueChannel):
                arg = operand("bias", (channel.extent,), (channel.index,), channel.guard)
            else:
                arg = operand("bias", (shape[channel],), (store[channel],))
            value = parse_element_function("add", where, t.is_float)[0].build(t.const, value, arg)
            continue
        function, parameters = parse_element_function(step, where, t.is_float)
        base = "residual" if ALIASES.get(step, step) == "add" else "operand"
        args = [operand(base, shape, store)] if function.tensors == 2 else []
        value = function.build(t.const, value, *args, *parameters)
    if epilogue and isinstance(channel, EpilogueChannel) and channel.has_tail:
        # Compared as floats: readers interpret integer comparisons of indices as load guards, which an epilogue must
        # not have.
        position = Cast("float32", IndexValue(channel.index))
        inside = Call("lt", (position, Const(float(channel.extent), "float32")))
        value = Call("select", (inside, value, t.const(0)))
    return value, operands
