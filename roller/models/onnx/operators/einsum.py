"""Lowering of Einstein sums of one or two tensors; more tensors are multiplied in turn."""

from __future__ import annotations

from roller.expr import REDUCTION, Axis, Call, Index, Scalar, Stage, axis_index
from roller.models.onnx.lowering_helpers import (
    accumulation_types,
    float_accumulation_types,
    output_or_intermediate_tensor,
    reduction_with_ending,
    refuse_empty_tensors,
    require_shape,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.node_rewriter import NodeRewriter
from roller.ops.operator_argument_checks import OperatorDtypes, ensure_spatial_axis, identity_indices
from roller_runtime.plan.program_steps import Value


@lowers("Einsum")
def lower_einsum(site: Site) -> Lowered:
    """Lower ``Einsum``: the result's letters become spatial axes, and the other letters are reduced."""
    refuse_empty_tensors(site)
    operands = [site.required(i) for i in range(len(site.inputs))]
    y = site.output
    terms, result = _parse_equation(str(site.attribute("equation", "")), [len(v.shape) for v in operands])
    sizes = _letter_sizes(terms, operands)
    require_shape(y, [sizes[c] for c in result])
    if len(operands) > 2:
        return _rewrite_as_pairwise_products(site, operands, terms, result, sizes)
    t = accumulation_types(operands[0], y)
    loads = [_load_by_letters(v, term, t, sizes) for v, term in zip(operands, terms, strict=True)]
    body: Scalar = Call("mul", tuple(loads)) if len(loads) == 2 else loads[0]
    points = tuple(Axis(_axis_name(c), sizes[c]) for c in result)
    summed = tuple(Axis(_axis_name(c), sizes[c], REDUCTION) for c in dict.fromkeys("".join(terms)) if c not in result)
    if not summed:
        return Compute(
            (
                Stage(
                    output_or_intermediate_tensor(y),
                    ensure_spatial_axis(points),
                    identity_indices(points),
                    body,
                    None,
                    t.acc,
                ),
            )
        )
    return Compute(reduction_with_ending(y, (*points, *summed), identity_indices(points), body, "sum", t))


def _parse_equation(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result; digits stand for the dimensions of an ellipsis."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"equation '{equation}' has {len(terms)} terms for {len(ranks)} operands")
    hidden = [r - len(term.replace("...", "")) for term, r in zip(terms, ranks, strict=True)]
    most = max((n for n, term in zip(hidden, terms, strict=True) if "..." in term), default=0)
    digits = "0123456789"
    if most > len(digits) or any(n < 0 or (n and "..." not in term) for n, term in zip(hidden, terms, strict=True)):
        raise Unsupported(f"equation '{equation}' does not fit operands of ranks {ranks}")
    letters = "".join(terms).replace("...", "")
    if not arrow:
        once = sorted(c for c in set(letters) if letters.count(c) == 1)
        right = ("..." if most else "") + "".join(once)
    expanded = [term.replace("...", digits[most - n : most]) for term, n in zip(terms, hidden, strict=True)]
    result = right.replace("...", digits[:most])
    if not set(result) <= set("".join(expanded)) or len(set(result)) != len(result):
        raise Unsupported(f"equation '{equation}' repeats or invents letters in its result")
    return expanded, result


def _letter_sizes(terms: list[str], operands: list[Value]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, value in zip(terms, operands, strict=True):
        for letter, size in zip(term, value.shape, strict=True):
            known = sizes.get(letter, 1)
            if known != size and 1 not in (known, size):
                raise Unsupported(f"letter '{letter}' stands for {known} and for {size} elements")
            sizes[letter] = max(known, size)
    return sizes


def _axis_name(letter: str) -> str:
    return f"e{letter}" if letter.isdigit() else letter if letter.islower() else f"{letter.lower()}_"


def _load_by_letters(value: Value, term: str, t: OperatorDtypes, sizes: dict[str, int]) -> Scalar:
    """Return a load of the element at the letters of ``term``; a broadcast dimension is indexed by 0."""
    at = (axis_index(_axis_name(c)) if n == sizes[c] else Index() for c, n in zip(term, value.shape, strict=True))
    return t.load(value.name, tuple(at))


def _rewrite_as_pairwise_products(
    site: Site, operands: list[Value], terms: list[str], result: str, sizes: dict[str, int]
) -> Lowered:
    """Multiply two operands at a time, from the left, and sum each product over letters not needed later."""
    float_accumulation_types(operands[0], site.output)
    steps = NodeRewriter(site)
    value, term = operands[0], terms[0]
    spelled = {c: chr(ord("a") + n) for n, c in enumerate(sizes)}
    if len(spelled) > 26:
        raise Unsupported(f"an equation of {len(spelled)} letters is too long")
    for n, (operand, letters) in enumerate(zip(operands[1:], terms[1:], strict=True), 2):
        later = set(result).union(*terms[n:])
        kept = result if n == len(terms) else "".join(c for c in dict.fromkeys(term + letters) if c in later)
        written = "->".join((",".join("".join(spelled[c] for c in p) for p in (term, letters)),
                             "".join(spelled[c] for c in kept)))  # fmt: skip
        shape = [sizes[c] for c in kept]
        value = steps.add("Einsum", (value, operand), shape, out=site.output if n == len(terms) else None,
                          equation=written)  # fmt: skip
        term = kept
    return steps.finish()
