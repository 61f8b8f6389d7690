"""Fusion rules: each takes a part and its reader and returns one part, a reason to refuse, or ``None``.

A fused part must keep the structure of its anchor (a sum of products stays tiled), so that the same templates accept
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from roller.core.dtypes import DTYPE_BYTES
from roller.errors import ExprError
from roller.expr import FUNCTIONS, Call, walk
from roller.models.graph import fusing, rowwise
from roller.models.graph.fusing import element_wise, plain_load, size_of
from roller.models.graph.parts import Computed
from roller.models.graph.unnamed_parts import Outcome

Change: TypeAlias = Callable[[Computed], Computed]

#: Maximum number of nodes of one scalar tree; longer chains are not fused.
_MOST_NODES = 128
#: Maximum number of tensors that one kernel loads.
_MOST_TENSORS = 8

_APART = "positions do not compose"


def is_movement(part: Computed) -> bool:
    """Whether a part only moves elements."""
    stage = element_wise(part)
    return stage is not None and plain_load(stage) is not None


def move_plainly(part: Computed, reader: Computed) -> Outcome:
    """Inline a movement into its reader if accesses stay affine."""
    return _accepted(part, reader, _inlined(part, reader), _APART) if is_movement(part) else None


def move_split(part: Computed, reader: Computed) -> Outcome:
    """Inline a movement into its reader if splitting the reader's axes makes accesses affine."""
    if not is_movement(part):
        return None
    new = _inlined(part, reader)
    new = fusing.with_affine_axes(new) if new is not None and element_wise(new) is None else new
    return _accepted(part, reader, new, _APART)


def absorb(part: Computed, reader: Computed) -> Outcome:
    """Append the element-wise part that reads an anchor's result."""
    if element_wise(part) is not None or element_wise(reader) is None:
        return None
    why = "the reader does not take every element once, in place"
    return _accepted(part, reader, fusing.appended(part, reader), why)


def chain_wide(part: Computed, reader: Computed) -> Outcome:
    """Apply :func:`chain` except to narrowing parts, which their anchors may append to store fewer bytes."""
    return None if _growth(part) < 1 else chain(part, reader)


def absorb_narrow(part: Computed, reader: Computed) -> Outcome:
    """Apply :func:`absorb` except to widening parts, which their readers may inline to load fewer bytes."""
    return None if element_wise(reader) is None or _growth(reader) > 1 else absorb(part, reader)


def absorb_split_narrow(part: Computed, reader: Computed) -> Outcome:
    """Apply :func:`absorb_split` except to widening parts."""
    return None if element_wise(reader) is None or _growth(reader) > 1 else absorb_split(part, reader)


def _growth(part: Computed) -> float:
    """Return the ratio of the element size written to the largest one read from a tensor of the same length."""
    stage = part.stages[-1]
    sizes = [DTYPE_BYTES[part.dtypes[t.name]] for t in part.reads if math.prod(t.shape) == stage.points]
    return DTYPE_BYTES[stage.output.dtype] / max(sizes, default=DTYPE_BYTES[stage.output.dtype])


def absorb_split(part: Computed, reader: Computed) -> Outcome:
    """Append the element-wise part that reads an anchor's result, with its axes split."""
    if element_wise(part) is not None or element_wise(reader) is None:
        return None
    new = fusing.appended(part, reader)
    return _accepted(part, reader, None if new is None else fusing.with_affine_axes(new), _APART)


def chain(part: Computed, reader: Computed) -> Outcome:
    """Inline element-wise arithmetic into element-wise arithmetic that reads it at one index."""
    if element_wise(part) is None or is_movement(reader):
        return None
    # A part read at several indices is better appended to its own producer.
    places = {ld.index for s in reader.stages for ld in s.loads if ld.tensor == part.outputs[0]}
    return chain_moved(part, reader) if len(places) == 1 else None


def chain_moved(part: Computed, reader: Computed) -> Outcome:
    """Inline element-wise arithmetic into a movement, or into arithmetic that reads it at several indices."""
    into = reader.stages[-1]
    early = any(ld.tensor == part.outputs[0] for s in reader.stages[:-1] for ld in s.loads)
    if element_wise(part) is None or into.combiner is not None or early:
        return None
    if into.points > part.stages[0].points and _arithmetic(part)[0]:
        return "arithmetic would be repeated for every element it is spread over"
    return _accepted(part, reader, _inlined(part, reader), _APART)


def _runs_by_rows(part: Computed) -> bool:
    return part.structure is not None and part.structure.spreads_reductions


def _streams(part: Computed) -> bool:
    return part.structure is not None and not part.structure.reduces


def prologue(part: Computed, reader: Computed) -> Outcome:
    """Inline cheap element-wise arithmetic into the row-wise reduction that reads it."""
    if element_wise(part) is None or element_wise(reader) is not None:
        return None
    if not _runs_by_rows(reader):
        return "a sum of products or a window reads its operands as they are"
    times = sum(ld.tensor == part.outputs[0] for s in reader.stages for ld in s.loads)
    if times > 1 and _arithmetic(part)[1]:
        return "arithmetic that takes long would be repeated by every pass over a row"
    return _accepted(part, reader, _inlined(part, reader), _APART)


def share_rows(part: Computed, reader: Computed) -> Outcome:
    """Fuse a row-wise reduction with a reader over the same rows."""
    if not _runs_by_rows(part) or not (_runs_by_rows(reader) or _streams(reader)):
        return None
    part, reader = settled(part), settled(reader)
    return _accepted(part, reader, rowwise.joined(part, reader), "they share no rows")


def side_by_side(part: Computed, reader: Computed) -> Outcome:
    """Merge element-wise arithmetic with its producer if the producer's result is stored anyway."""
    if element_wise(part) is None or element_wise(reader) is None or is_movement(part):
        return None
    new = fusing.beside(part, reader)
    if new is None or len(new.reads) > _MOST_TENSORS:
        return None
    return new if _streams(new.canonical) else None


def tidy(part: Computed) -> Computed:
    """Return a simplified part, or the part itself if simplification fails."""
    try:
        return fusing.tidy(part)
    except ExprError:
        return part


def started(part: Computed) -> Computed:
    """Return a part in the initial form of fusion: the groups of a convolution are axes."""
    return tidy(fusing.with_affine_axes(part) or part)


def settled(part: Computed) -> Computed:
    """Return a part in the form in which its kernel is compiled."""
    try:
        return tidy(part).canonical
    except ExprError:
        return part


def _inlined(part: Computed, reader: Computed) -> Computed | None:
    """Return a reader with a part inlined; element-wise readers get their axes split as needed."""
    new = fusing.inlined(part, reader)
    return new if new is None or element_wise(new) is None else fusing.with_affine_axes(new) or new


def _arithmetic(part: Computed) -> tuple[int, int]:
    """Return the number of function calls per point, and how many of them are slow."""
    calls = [n for s in part.stages for n in walk(s.body) if isinstance(n, Call)]
    return len(calls), sum(FUNCTIONS[c.fn].instruction_class == "special" for c in calls)


def _accepted(part: Computed, reader: Computed, new: Computed | None, reason: str) -> Computed | str:
    """Return the simplified fused part if it has its anchor's structure or else its reader's; otherwise a reason."""
    if new is None:
        return reason
    if any(size_of(s.body) > _MOST_NODES for s in new.stages) or len(new.reads) > _MOST_TENSORS:
        return "the chain is long enough"
    new = tidy(new)
    anchors = [p for p in (part, reader) if element_wise(p) is None]
    if anchors and not fusing.is_affine(new) and fusing.is_affine(anchors[0]):
        return "positions of the reduction would need divisions"
    before, after = (anchors[0] if anchors else reader).structure, new.structure
    if after is None or after != before:
        return f"the kernel would be {after or 'no expression'} instead of {before}"
    return new
