"""Rates of dtype conversions, which depend on the narrower dtype and on whether the conversion widens or narrows.

Devices convert to and from 64-bit dtypes at a different rate than between 16-bit and 32-bit dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from roller.expr.scalar import Cast, Const, IndexValue, Load, Scalar, instruction_mix, walk_scalar_tree
from roller_runtime.core.dtypes import DTYPES

if TYPE_CHECKING:
    from roller.expr.tensor_expr import Stage, TensorExpr

#: Instruction classes of conversions from a narrow dtype to a wider one, and back.
WIDENING, NARROWING = "convert", "convert_to"
_WIDE_BYTES = 8


def conversion_rate_key(source: str, target: str) -> tuple[str, str] | None:
    """Return the instruction class and dtype whose rate applies to a conversion, or ``None`` if it is free.

    Examples
    --------
    >>> conversion_rate_key("float16", "float32"), conversion_rate_key("float32", "float16")
    (('convert', 'float16'), ('convert_to', 'float16'))
    >>> (conversion_rate_key("int64", "float32"), conversion_rate_key("uint8", "float32"),
    ...  conversion_rate_key("float32", "int32"))
    (('convert', 'float64'), ('convert', 'int8'), ('convert_to', 'int32'))
    """
    one, other = DTYPES[source], DTYPES[target]
    alike = {one.kind, other.kind} <= {"int", "uint"} and one.itemsize_bytes == other.itemsize_bytes
    if source == target or alike or other.kind == "bool":  # the same bits, or a comparison
        return None
    if _WIDE_BYTES in (one.itemsize_bytes, other.itemsize_bytes):
        return WIDENING, "float64"
    narrows = other.itemsize_bytes < one.itemsize_bytes
    if one.itemsize_bytes == other.itemsize_bytes:
        narrows = not other.is_float
    row = other if narrows else one
    named = row.name if row.is_float else f"int{8 * row.itemsize_bytes}"
    return (NARROWING if narrows else WIDENING), named


def count_conversions(body: Scalar, dtypes: Mapping[str, str], computed: str) -> Counter[tuple[str, str]]:
    """Count the conversions for one point by instruction class and dtype; equal subtrees are converted once."""
    found: Counter[tuple[str, str]] = Counter()
    for node in dict.fromkeys(n for n in walk_scalar_tree(body) if isinstance(n, Cast)):
        rate = conversion_rate_key(_operand_dtype(node.arg, dtypes, computed), node.dtype)
        if rate is not None:
            found[rate] += 1
    return found


def conversion_of_stored_result(stage: Stage) -> tuple[str, str] | None:
    """Return the rate key of the conversion of a stage's result to its output dtype, or ``None`` if it is free."""
    body = stage.body
    made = body.dtype if isinstance(body, Cast) and stage.combiner is None else stage.acc_dtype
    return conversion_rate_key(made, stage.output.dtype)


def dtypes_by_tensor(expr: TensorExpr) -> dict[str, str]:
    """Return the dtype of each tensor, keyed by tensor name."""
    if "dtypes" not in expr._memo:
        expr._memo["dtypes"] = {name: t.dtype for name, t in expr.tensors.items()}
    found: dict[str, str] = expr._memo["dtypes"]
    return found


def instruction_mix_by_dtype(
    body: Scalar, combiner: str | None, dtypes: Mapping[str, str], computed: str
) -> dict[tuple[str, str], float]:
    """Return the instruction counts for one point by instruction class and the dtype whose rate applies.

    Examples
    --------
    >>> half = Cast("float32", Load("X", ()))
    >>> instruction_mix_by_dtype(half, "sum", {"X": "float16"}, "float32")
    {('fma', 'float32'): 1.0, ('convert', 'float16'): 1.0}
    """
    mix = {(name, computed): n for name, n in instruction_mix(body, combiner).items() if name != WIDENING}
    return mix | {rate: float(n) for rate, n in count_conversions(body, dtypes, computed).items()}


def ops_per_cycle(rates: Mapping[str, float], instruction: str, dtype: str) -> float:
    """Return one unit's operations per cycle; a dtype defaults to its class, narrowing to widening, and all to fma.

    Examples
    --------
    >>> rates = {"fma": 128.0, "convert": 16.0, "convert.float16": 64.0, "convert_to.float16": 16.0}
    >>> [ops_per_cycle(rates, *x) for x in (("convert", "float16"), ("convert_to", "float16"), ("convert_to", "int8"))]
    [64.0, 16.0, 16.0]
    """
    classes = (instruction, WIDENING) if instruction == NARROWING else (instruction,)
    names = [x for name in classes for x in (f"{name}.{dtype}", name)]
    return next((rates[x] for x in names if x in rates), rates["fma"])


def _operand_dtype(node: Scalar, dtypes: Mapping[str, str], computed: str) -> str:
    if isinstance(node, Load):
        return dtypes.get(node.tensor, computed)
    return node.dtype if isinstance(node, Cast | Const | IndexValue) else computed
