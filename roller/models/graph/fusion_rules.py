"""Fusion rules: each takes a part and its reader and returns one part, a reason to refuse, or ``None``.

A fused part must keep the structure of its anchor (a sum of products stays tiled), so that the same templates accept
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from roller.errors import ExprError
from roller.expr import FUNCTIONS, Call, walk_scalar_tree
from roller.models.graph import fusion_rewrites, rowwise_fusion
from roller.models.graph.fusion_rewrites import count_scalar_nodes, only_elementwise_stage, pure_copy_load
from roller.models.graph.fusion_rule_cache import RuleOutcome
from roller.models.graph.lowered_parts import ComputedPart
from roller_runtime.core.dtypes import DTYPE_BYTES

Change: TypeAlias = Callable[[ComputedPart], ComputedPart]

#: Maximum number of nodes in one scalar expression; longer chains are not fused.
_MOST_NODES = 128
#: Maximum number of tensors that one kernel loads.
_MOST_TENSORS = 8

_APART = "positions do not compose"


def is_movement(part: ComputedPart) -> bool:
    """Return whether a part only moves elements."""
    stage = only_elementwise_stage(part)
    return stage is not None and pure_copy_load(stage) is not None


def inline_affine_movement(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Inline a movement into its reader if accesses stay affine."""
    return (
        _accept_if_same_structure(part, reader, _inline_into_loads(part, reader), _APART) if is_movement(part) else None
    )


def inline_split_movement(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Inline a movement into its reader if splitting the reader's axes makes accesses affine."""
    if not is_movement(part):
        return None
    new = _inline_into_loads(part, reader)
    new = fusion_rewrites.split_axes_to_affine(new) if new is not None and only_elementwise_stage(new) is None else new
    return _accept_if_same_structure(part, reader, new, _APART)


def append_to_anchor(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Append the element-wise part that reads an anchor's result."""
    if only_elementwise_stage(part) is not None or only_elementwise_stage(reader) is None:
        return None
    why = "the reader does not take every element once, in place"
    return _accept_if_same_structure(part, reader, fusion_rewrites.append_elementwise(part, reader), why)


def chain_unless_narrowing(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Apply :func:`chain_elementwise` except to narrowing parts; their anchors may append them to store fewer bytes."""
    return None if _width_ratio(part) < 1 else chain_elementwise(part, reader)


def append_unless_widening(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Apply :func:`append_to_anchor` except to widening parts; their readers may inline them to load fewer bytes."""
    return (
        None if only_elementwise_stage(reader) is None or _width_ratio(reader) > 1 else append_to_anchor(part, reader)
    )


def append_split_unless_widening(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Apply :func:`append_split_to_anchor` except to widening parts."""
    return (
        None
        if only_elementwise_stage(reader) is None or _width_ratio(reader) > 1
        else append_split_to_anchor(part, reader)
    )


def _width_ratio(part: ComputedPart) -> float:
    """Return the ratio of the element size written to the largest one read from a tensor of the same length."""
    stage = part.stages[-1]
    sizes = [DTYPE_BYTES[part.dtypes[t.name]] for t in part.reads if math.prod(t.shape) == stage.points]
    return DTYPE_BYTES[stage.output.dtype] / max(sizes, default=DTYPE_BYTES[stage.output.dtype])


def append_split_to_anchor(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Append the element-wise part that reads an anchor's result; split axes so that accesses are affine."""
    if only_elementwise_stage(part) is not None or only_elementwise_stage(reader) is None:
        return None
    new = fusion_rewrites.append_elementwise(part, reader)
    return _accept_if_same_structure(
        part, reader, None if new is None else fusion_rewrites.split_axes_to_affine(new), _APART
    )


def chain_elementwise(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Inline element-wise arithmetic into element-wise arithmetic that reads it at one index."""
    if only_elementwise_stage(part) is None or is_movement(reader):
        return None
    # A part read at several indices is better appended to its own producer.
    places = {ld.index for s in reader.stages for ld in s.loads if ld.tensor == part.outputs[0]}
    return chain_into_movement(part, reader) if len(places) == 1 else None


def chain_into_movement(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Inline element-wise arithmetic into a movement, or into arithmetic that reads it at several indices."""
    into = reader.stages[-1]
    early = any(ld.tensor == part.outputs[0] for s in reader.stages[:-1] for ld in s.loads)
    if only_elementwise_stage(part) is None or into.combiner is not None or early:
        return None
    if into.points > part.stages[0].points and _count_function_calls_per_point(part)[0]:
        return "arithmetic would be repeated for every element it is spread over"
    return _accept_if_same_structure(part, reader, _inline_into_loads(part, reader), _APART)


def _is_rowwise(part: ComputedPart) -> bool:
    return part.structure is not None and part.structure.spreads_reductions


def _is_streaming(part: ComputedPart) -> bool:
    return part.structure is not None and not part.structure.reduces


def inline_prologue(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Inline cheap element-wise arithmetic into the row-wise reduction that reads it."""
    if only_elementwise_stage(part) is None or only_elementwise_stage(reader) is not None:
        return None
    if not _is_rowwise(reader):
        return "a sum of products or a window reads its operands as they are"
    times = sum(ld.tensor == part.outputs[0] for s in reader.stages for ld in s.loads)
    if times > 1 and _count_function_calls_per_point(part)[1]:
        return "arithmetic that takes long would be repeated by every pass over a row"
    return _accept_if_same_structure(part, reader, _inline_into_loads(part, reader), _APART)


def fuse_shared_rows(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Fuse a row-wise reduction with a reader over the same rows."""
    if not _is_rowwise(part) or not (_is_rowwise(reader) or _is_streaming(reader)):
        return None
    part, reader = final_form(part), final_form(reader)
    return _accept_if_same_structure(part, reader, rowwise_fusion.fuse_rows(part, reader), "they share no rows")


def merge_with_producer(part: ComputedPart, reader: ComputedPart) -> RuleOutcome:
    """Merge an element-wise part with an element-wise producer whose result is stored anyway."""
    if only_elementwise_stage(part) is None or only_elementwise_stage(reader) is None or is_movement(part):
        return None
    new = fusion_rewrites.merge_elementwise(part, reader)
    if new is None or len(new.reads) > _MOST_TENSORS:
        return None
    return new if _is_streaming(new.canonical) else None


def try_simplify(part: ComputedPart) -> ComputedPart:
    """Return a simplified part, or the part itself if simplification fails."""
    try:
        return fusion_rewrites.simplify_accesses(part)
    except ExprError:
        return part


def initial_form(part: ComputedPart) -> ComputedPart:
    """Return a part in the form with which fusion begins: the groups of a convolution are axes."""
    return try_simplify(fusion_rewrites.split_axes_to_affine(part) or part)


def final_form(part: ComputedPart) -> ComputedPart:
    """Return a part in the form in which its kernel is compiled."""
    try:
        return try_simplify(part).canonical
    except ExprError:
        return part


def _inline_into_loads(part: ComputedPart, reader: ComputedPart) -> ComputedPart | None:
    """Return a reader with a part inlined (axes of element-wise readers split as needed); ``None`` if impossible."""
    new = fusion_rewrites.inline_elementwise_into_loads(part, reader)
    return (
        new if new is None or only_elementwise_stage(new) is None else fusion_rewrites.split_axes_to_affine(new) or new
    )


def _count_function_calls_per_point(part: ComputedPart) -> tuple[int, int]:
    """Return the number of function calls per point, and the number of slow ones among them."""
    calls = [n for s in part.stages for n in walk_scalar_tree(s.body) if isinstance(n, Call)]
    return len(calls), sum(FUNCTIONS[c.fn].instruction_class == "special" for c in calls)


def _accept_if_same_structure(
    part: ComputedPart, reader: ComputedPart, new: ComputedPart | None, reason: str
) -> ComputedPart | str:
    """Return the simplified fused part if it has the anchor's (or else the reader's) structure; otherwise a reason."""
    if new is None:
        return reason
    if any(count_scalar_nodes(s.body) > _MOST_NODES for s in new.stages) or len(new.reads) > _MOST_TENSORS:
        return "the chain is long enough"
    new = try_simplify(new)
    anchors = [p for p in (part, reader) if only_elementwise_stage(p) is None]
    if anchors and not fusion_rewrites.has_affine_accesses(new) and fusion_rewrites.has_affine_accesses(anchors[0]):
        return "positions of the reduction would need divisions"
    before, after = (anchors[0] if anchors else reader).structure, new.structure
    if after is None or after != before:
        return f"the kernel would be {after or 'no expression'} instead of {before}"
    return new
