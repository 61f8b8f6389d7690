"""Notes on a device's matrix unit: dtypes it does not support, and instructions that the price does not assume.

A product that no matrix instruction supports is priced on the arithmetic pipes, which may take ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterable

from roller.core.matrix_instruction_fragment import Fragment
from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.hardware.architecture_features import architecture_matrix_family
from roller_runtime.core.dtypes import DTYPES

#: Common name of the arithmetic pipes, by the language of a target.
_PIPES = {"cuda": "CUDA cores", "hip": "vector units"}


def fragment_supports(fragment: Fragment, expression: TensorExpr) -> bool:
    """Return whether a fragment can multiply the two inputs of an expression and add up the products."""
    anchor, tensors = expression.anchor, expression.tensors
    alike = [tensors[x.tensor].dtype for x in anchor.loads] == [fragment.operand] * 2
    return alike and anchor.combiner == "sum" and anchor.acc_dtype == fragment.accumulator


def notes_on_matrix_unit(expressions: Iterable[TensorExpr], spec: DeviceSpec, *, ours: bool = False) -> tuple[str, ...]:
    """Return a sentence for each dtype whose products are not priced at the full rate of the matrix unit.

    Examples
    --------
    >>> from roller import ops
    >>> from roller.hardware import load_spec
    >>> notes_on_matrix_unit([ops.matmul(64, 64, 64, dtype="bfloat16")], load_spec("t4"))
    ('bfloat16 has no matrix unit on t4 (its specification has one for float16): priced on CUDA cores.',)
    >>> notes_on_matrix_unit([ops.matmul(64, 64, 64), ops.matmul(64, 64, 64, dtype="float16")], load_spec("t4"))
    ()
    """
    if not spec.traits.blocks:
        return ()
    spec = spec.constructed if ours else spec
    found: dict[str, None] = {}
    for expression in expressions:
        dtype = _shared_operand_dtype(expression)
        note = "" if dtype is None else _note_on_dtype(expression, dtype, spec, ours)
        if note:
            found[note] = None
    return tuple(found)


def _shared_operand_dtype(expression: TensorExpr) -> str | None:
    """Return the dtype that both operands of a product share, or ``None`` if the expression is no such product."""
    anchor, tensors = expression.anchor, expression.tensors
    dtypes = {tensors[x.tensor].dtype for x in anchor.loads if x.tensor in tensors}
    return dtypes.pop() if anchor.combiner == "sum" and len(anchor.loads) == 2 and len(dtypes) == 1 else None


def _note_on_dtype(expression: TensorExpr, dtype: str, spec: DeviceSpec, ours: bool) -> str:
    name, pipes = spec.name, _PIPES.get(spec.target["language"], "its pipes")
    used = [f for f in spec.fragments if fragment_supports(f, expression)]
    if used:
        return _note_on_instructions(used, dtype, spec, ours)
    if any(f.operand == dtype for f in spec.fragments):
        sums = expression.anchor.acc_dtype
        return f"{dtype} with sums in {sums} has no matrix unit on {name}: priced on {pipes}."
    if not DTYPES[dtype].is_float or DTYPES[dtype].is_narrow:
        known = ", ".join(dict.fromkeys(f.operand for f in spec.fragments))
        others = f" (its specification has one for {known})" if known else ""
        return f"{dtype} has no matrix unit on {name}{others}: priced on {pipes}."
    rates = spec.compute.ops_per_cycle_per_unit
    own, pipe = rates.get(f"matrix.{dtype}", 0.0), rates.get(f"fma.{dtype}", rates["fma"])
    if own <= pipe:
        return ""
    return (
        f"{dtype} on {name}: its matrix unit takes it at {own / pipe:.3g} times the rate of its pipes, but no "
        f"instruction of that is priced here: priced on {pipes}."
    )


def _note_on_instructions(used: list[Fragment], dtype: str, spec: DeviceSpec, ours: bool) -> str:
    """Return the note on the matrix instructions for a dtype, or ``""`` if none is needed."""
    known = {f.family for f in used}
    families = ", ".join(sorted(known))
    if ours and not any(f.emitted for f in used):
        return (
            f"{dtype} on {spec.name}: priced with its matrix unit ({families}), which no template emits code for: "
            "compiled kernels run without it."
        )
    own = architecture_matrix_family(spec.target.get("arch", ""))
    if own and own not in known:
        return (
            f"{dtype} on {spec.name}: priced with the matrix instructions of earlier devices ({families}); its own "
            f"({own}) are not counted on, and may be faster."
        )
    return ""
