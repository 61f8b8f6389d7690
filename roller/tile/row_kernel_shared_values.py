"""Values that a row kernel computes once: values of a row, and values of an element that two stages need.

A value of a row depends on no column. A division by such a value becomes a multiplication by its reciprocal where that
is safe (:func:`with_reciprocals`); values of elements that two stages need stay in registers (:func:`shared_values`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from roller.expr import (
    COMBINERS,
    FUNCTIONS,
    Call,
    Cast,
    Const,
    IndexValue,
    Load,
    Scalar,
    Stage,
    TensorExpr,
    walk_scalar_tree,
)
from roller.expr.dtype_conversion_rates import conversion_of_stored_result, dtypes_by_tensor, instruction_mix_by_dtype
from roller.expr.scalar import loads
from roller.tile.row_stages_and_shared_loads import loads_kept_in_registers, row_stages

#: Smallest normal number of float32 (far above float64's); its reciprocal is finite and exact.
_SMALLEST = 2.0**-126
#: Discontinuous functions: one more rounding in their operands could change the result by a whole step.
_JUMPS = ("floor", "ceil", "eq", "lt", "le")
_UNKNOWN = float("-inf")


@dataclass(frozen=True)
class RowForm:
    """A stage's arithmetic as a row kernel evaluates it.

    Parameters
    ----------
    body
        The value of one element, with safe divisions by row values replaced by multiplications.
    row
        Subtrees of ``body`` that contain a special function and depend on no column; each is computed once per row.
    """

    body: Scalar
    row: tuple[Scalar, ...]


def row_form(expr: TensorExpr, s: Stage, columns: Collection[str]) -> RowForm:
    """Return the row form of a stage over ``columns``; a stage with one result per row is unchanged."""
    if not columns:
        return RowForm(s.body, ())
    body = with_reciprocals(expr, s, columns)
    return RowForm(body, tuple(dict.fromkeys(_subtrees_to_compute_per_row(body, columns))))


def shared_values(expr: TensorExpr) -> tuple[Scalar, ...]:
    """Return the values of an element that a reduction computes and a later stage needs at the same element.

    Examples
    --------
    >>> from roller import ops
    >>> [v.fn for v in shared_values(ops.softmax((8, 100)))]
    ['exp']
    """
    # These are the largest subtrees of :attr:`RowForm.body` with a special function of the columns; anything cheaper is
    # recomputed.
    if "shared_values" not in expr._memo:
        known: set[Scalar] = set()
        found: list[Scalar] = []
        for s in row_stages(expr):
            if not s.aligned:
                continue
            body = row_form(expr, s.stage, s.columns).body
            found += _largest_known_subtrees(body, known)
            if s.stage.combiner is not None:
                known |= {n for n in walk_scalar_tree(body) if isinstance(n, Call) and _is_worth_register(n, s.columns)}
        expr._memo["shared_values"] = tuple(dict.fromkeys(found))
    values: tuple[Scalar, ...] = expr._memo["shared_values"]
    return values


class InstructionFrequency(Enum):
    """How often instructions run: once per row, once per element, or once per element unless the row is kept."""

    ROW = "row"
    ELEMENT = "element"
    AGAIN = "again"


def row_instruction_mix(expr: TensorExpr) -> tuple[tuple[InstructionFrequency, str, str, float], ...]:
    """Return the share, rate dtype, instruction class and count of all arithmetic in a row expression."""
    if "row_mix" not in expr._memo:
        found: dict[tuple[InstructionFrequency, str, str], float] = {}
        columns = {a.name for a in expr.anchor.reduction_axes}
        ready: set[Scalar] = set()
        again = shared_values(expr)

        def add(share: InstructionFrequency, s: Stage, body: Scalar, combiner: str | None) -> None:
            for (fn, dtype), count in instruction_mix_by_dtype(
                body, combiner, dtypes_by_tensor(expr), s.acc_dtype
            ).items():
                key = (share, dtype, fn)
                found[key] = found.get(key, 0.0) + count

        for r in row_stages(expr):
            s = r.stage
            wide = any(a.name in columns for a in s.axes)
            form = row_form(expr, s, r.columns)
            values: dict[Scalar, Scalar] = {v: Load("", ()) for v in form.row}
            for v in form.row:
                add(InstructionFrequency.ROW, s, v, None)
            mine = [v for v in again if r.aligned and v in set(walk_scalar_tree(form.body))]
            for v in mine:
                add(
                    InstructionFrequency.AGAIN if v in ready else InstructionFrequency.ELEMENT,
                    s,
                    replace_scalar_subtrees(v, values),
                    None,
                )
            rest = replace_scalar_subtrees(form.body, {**values, **{v: Load("", ()) for v in mine}})
            add(InstructionFrequency.ELEMENT if wide else InstructionFrequency.ROW, s, rest, s.combiner)
            ready |= set(mine)
        expr._memo["row_mix"] = tuple((*key, n) for key, n in found.items())
    mix: tuple[tuple[InstructionFrequency, str, str, float], ...] = expr._memo["row_mix"]
    return mix


def row_conversion_rates(expr: TensorExpr) -> tuple[tuple[InstructionFrequency, tuple[str, str]], ...]:
    """Return the share and the rate of each conversion of a result to its storage dtype."""
    if "row_conversions" not in expr._memo:
        found = []
        for r in row_stages(expr):
            rate, wide = conversion_of_stored_result(r.stage), r.stage.combiner is None and bool(r.columns)
            if rate is not None:
                found.append((InstructionFrequency.ELEMENT if wide else InstructionFrequency.ROW, rate))
        expr._memo["row_conversions"] = tuple(found)
    conversions: tuple[tuple[InstructionFrequency, tuple[str, str]], ...] = expr._memo["row_conversions"]
    return conversions


def extra_registers_of_shared_values(expr: TensorExpr) -> int:
    """Return how many more registers per element the shared values need than the kept inputs that they replace."""
    if "shared_words" not in expr._memo:
        shared = shared_values(expr)
        stages = [r for r in row_stages(expr) if r.aligned]
        bodies = [row_form(expr, r.stage, r.columns).body for r in stages]
        first = min((n for n, b in enumerate(bodies) if set(walk_scalar_tree(b)) & set(shared)), default=len(bodies))
        left = {ld for b in bodies[first:] for ld in loads(replace_scalar_subtrees(b, {v: Const(0.0) for v in shared}))}
        free = [ld for ld in loads_kept_in_registers(expr) if ld not in left]
        expr._memo["shared_words"] = max(0, len(shared) - len(free))
    words: int = expr._memo["shared_words"]
    return words


def replace_scalar_subtrees(body: Scalar, values: Mapping[Scalar, Scalar]) -> Scalar:
    """Return ``body`` with subtrees replaced, starting with the largest."""
    if body in values:
        return values[body]
    if isinstance(body, Call):
        return Call(body.fn, tuple(replace_scalar_subtrees(a, values) for a in body.args))
    return Cast(body.dtype, replace_scalar_subtrees(body.arg, values)) if isinstance(body, Cast) else body


def with_reciprocals(expr: TensorExpr, s: Stage, columns: Collection[str]) -> Scalar:
    """Return the body of a stage with ``y * (1 / x)`` for ``y / x`` where ``x`` is certainly a normal number."""
    # The product has one more rounding than the quotient: its error is at most 1.5 ulp instead of 0.5 ulp, of the 8 ulp
    # that :mod:`roller.runtime.check` allows. The reciprocal of a subnormal ``x`` could overflow where the quotient is
    # finite, so the divisor must be at least the smallest normal number (:func:`lower_bound_of_scalar`): a softmax's
    # sum (at least 1) or a norm with its epsilon, but not a bare sum of magnitudes. Above ``2**126``, the reciprocal is
    # subnormal and loses two bits; infinities and NaN give the same results as the division. Divisions inside
    # comparisons, rounding functions and conversions to integers stay, because these are discontinuous.
    tensors = expr.tensors
    if "float" not in s.output.dtype:
        return s.body
    read = (
        tensors[ld.tensor].dtype for ld in s.loads if ld.tensor in tensors
    )  # excludes a split reduction's partial results
    wide = "float64" in {s.acc_dtype, s.output.dtype, *read}
    one = Const(1.0, "float64" if wide else "float32")

    def rewrite(n: Scalar) -> Scalar:
        if isinstance(n, Cast):
            return Cast(n.dtype, rewrite(n.arg)) if "float" in n.dtype else n
        if not isinstance(n, Call) or n.fn in _JUMPS:
            return n
        if n.fn == "select":
            return Call(n.fn, (n.args[0], rewrite(n.args[1]), rewrite(n.args[2])))
        if (
            n.fn == "div"
            and not _depends_on_columns(n.args[1], columns)
            and lower_bound_of_scalar(n.args[1], expr) >= _SMALLEST
        ):
            return Call("mul", (rewrite(n.args[0]), Call("div", (one, n.args[1]))))
        return Call(n.fn, tuple(rewrite(a) for a in n.args))

    return rewrite(s.body)


def lower_bound_of_scalar(n: Scalar, expr: TensorExpr) -> float:
    """Return a lower bound on ``n`` (NaN aside), or ``-inf`` if none is known.

    Examples
    --------
    >>> from roller import ops
    >>> e = ops.softmax((8, 100))
    >>> lower_bound_of_scalar(e.stages[-1].body.args[1], e)
    1.0
    """
    if isinstance(n, Const):
        return n.value
    if isinstance(n, Load):
        s = next((x.stage for x in row_stages(expr) if x.stage.name == n.tensor), None)
        wide = s is not None and s.output.dtype in ("float32", "float64") and s.acc_dtype in ("float32", "float64")
        return _lower_bound_of_stage(s, expr) if s is not None and wide and not n.guard else _UNKNOWN
    if isinstance(n, Cast):
        return lower_bound_of_scalar(n.arg, expr) if n.dtype in ("float32", "float64") else _UNKNOWN
    if not isinstance(n, Call):
        return _UNKNOWN
    low = [lower_bound_of_scalar(a, expr) for a in n.args]
    if n.fn in ("exp", "sigmoid", "rsqrt"):
        return 0.0
    if n.fn in ("abs", "sqrt"):
        return max(0.0, low[0] ** 0.5 if n.fn == "sqrt" and low[0] > 0 else low[0])
    if n.fn in ("max", "min"):
        return max(low) if n.fn == "max" else min(low)
    if n.fn == "select":
        return min(low[1:])
    if n.fn == "mul" and n.args[0] == n.args[1]:
        return max(0.0, low[0]) * max(0.0, low[1])
    # Sums and products of non-negative values; a quotient may round to zero.
    exact = {"add": sum(low), "mul": low[0] * low[1] if min(low) > 0 else 0.0, "div": 0.0} if len(low) == 2 else {}
    return exact.get(n.fn, _UNKNOWN) if min(low) >= 0 else _UNKNOWN


def _lower_bound_of_stage(s: Stage, expr: TensorExpr) -> float:
    """Return a lower bound on a stage's result; a sum of ``exp(x - max(x))`` contains the term 1 of the maximum."""
    low = lower_bound_of_scalar(s.body, expr)
    if s.combiner is None or COMBINERS[s.combiner].selects:
        return low
    if s.combiner != "sum" or low < 0:
        return _UNKNOWN
    return 1.0 if _sums_shifted_exponentials(s, expr) else low


def _sums_shifted_exponentials(s: Stage, expr: TensorExpr) -> bool:
    """Return whether a stage sums ``exp(x - m)`` where ``m`` is the largest ``x`` of the same sum."""
    body = s.body
    if not (isinstance(body, Call) and body.fn == "exp"):
        return False
    (shift,) = body.args
    if not (isinstance(shift, Call) and shift.fn == "sub" and isinstance(shift.args[1], Load)):
        return False
    value, largest = shift.args
    assert isinstance(largest, Load)
    m = next((x.stage for x in row_stages(expr) if x.stage.name == largest.tensor), None)
    # Stages with other axes have other names in their loads, so equal bodies are equal values.
    return (
        m is not None and m.combiner == "max" and m.body == value and m.store == largest.index
        and m.axes == s.axes and not largest.guard
    )  # fmt: skip


def _depends_on_columns(n: Scalar, columns: Collection[str]) -> bool:
    """Return whether a value depends on any of ``columns``."""
    indices = [
        i for x in walk_scalar_tree(n) if isinstance(x, Load | IndexValue)
        for i in ((x.index,) if isinstance(x, IndexValue) else (*x.index, *(b.index for b in x.guard)))
    ]  # fmt: skip
    return any(a in columns for i in indices for a in i.axes)


def _is_special_function_call(n: Scalar) -> bool:
    return isinstance(n, Call) and FUNCTIONS[n.fn].instruction_class == "special"


def _subtrees_to_compute_per_row(body: Scalar, columns: Collection[str]) -> Iterator[Scalar]:
    """Yield the largest subtrees that depend on no column and contain a special function."""
    if not _depends_on_columns(body, columns):
        if any(_is_special_function_call(n) for n in walk_scalar_tree(body)):
            yield body
    elif isinstance(body, Call):
        for a in body.args:
            yield from _subtrees_to_compute_per_row(a, columns)
    elif isinstance(body, Cast):
        yield from _subtrees_to_compute_per_row(body.arg, columns)


def _is_worth_register(n: Call, columns: Collection[str]) -> bool:
    """Return whether a value is worth a register: it contains a special function of the columns and is not a bool."""
    return n.fn not in _JUMPS and any(
        _is_special_function_call(x) and _depends_on_columns(x, columns) for x in walk_scalar_tree(n)
    )


def _largest_known_subtrees(body: Scalar, known: Collection[Scalar]) -> Iterator[Scalar]:
    """Yield the largest subtrees of ``body`` that are in ``known``."""
    if body in known:
        yield body
    elif isinstance(body, Call):
        for a in body.args:
            yield from _largest_known_subtrees(a, known)
    elif isinstance(body, Cast):
        yield from _largest_known_subtrees(body.arg, known)


__all__ = [
    "RowForm", "InstructionFrequency", "lower_bound_of_scalar", "replace_scalar_subtrees", "row_conversion_rates",
    "row_form", "row_instruction_mix",
    "shared_values", "extra_registers_of_shared_values",
    "with_reciprocals",
]  # fmt: skip
