"""When two parts become one: every rule takes a part and what reads it, and gives one part, a reason, or nothing.

A part that results must still be of the structure its anchor had (a sum of products stays one that is tiled), so that
every template that took the anchor takes it.
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

#: Nodes of one scalar tree: beyond, a chain is cut.
_MOST_NODES = 128
#: Loads of different tensors one kernel may have.
_MOST_TENSORS = 8

_APART = "positions do not compose"


def is_movement(part: Computed) -> bool:
    """Whether a part only moves elements."""
    stage = element_wise(part)
    return stage is not None and plain_load(stage) is not None


def move_plainly(part: Computed, reader: Computed) -> Outcome:
    """Put movement into its reader where its accesses stay affine."""
    return _accepted(part, reader, _inlined(part, reader), _APART) if is_movement(part) else None


def move_split(part: Computed, reader: Computed) -> Outcome:
    """Put movement into its reader where splitting its axes makes accesses affine."""
    if not is_movement(part):
        return None
    new = _inlined(part, reader)
    new = fusing.with_affine_axes(new) if new is not None and element_wise(new) is None else new
    return _accepted(part, reader, new, _APART)


def absorb(part: Computed, reader: Computed) -> Outcome:
    """Let an anchor take the element-wise part that reads its result."""
    if element_wise(part) is not None or element_wise(reader) is None:
        return None
    why = "the reader does not take every element once, in place"
    return _accepted(part, reader, fusing.appended(part, reader), why)


def chain_wide(part: Computed, reader: Computed) -> Outcome:
    """As :func:`chain`, but for what narrows: it is less when it is stored, so its anchor may take it first."""
    return None if _growth(part) < 1 else chain(part, reader)


def absorb_narrow(part: Computed, reader: Computed) -> Outcome:
    """As :func:`absorb`, but for what widens: what reads that may take it, and read less."""
    return None if element_wise(reader) is None or _growth(reader) > 1 else absorb(part, reader)


def absorb_split_narrow(part: Computed, reader: Computed) -> Outcome:
    """As :func:`absorb_split`, but for what widens."""
    return None if element_wise(reader) is None or _growth(reader) > 1 else absorb_split(part, reader)


def _growth(part: Computed) -> float:
    """Return bytes of an element that a part writes, over those of the widest it reads that are as many."""
    stage = part.stages[-1]
    sizes = [DTYPE_BYTES[part.dtypes[t.name]] for t in part.reads if math.prod(t.shape) == stage.points]
    return DTYPE_BYTES[stage.output.dtype] / max(sizes, default=DTYPE_BYTES[stage.output.dtype])


def absorb_split(part: Computed, reader: Computed) -> Outcome:
    """Let an anchor take the element-wise part that reads its result, its axes split."""
    if element_wise(part) is not None or element_wise(reader) is None:
        return None
    new = fusing.appended(part, reader)
    return _accepted(part, reader, None if new is None else fusing.with_affine_axes(new), _APART)


def chain(part: Computed, reader: Computed) -> Outcome:
    """Put element-wise arithmetic into the element-wise arithmetic that reads it, in one place."""
    if element_wise(part) is None or is_movement(reader):
        return None
    # Read in several places, it may better end what it reads.
    places = {ld.index for s in reader.stages for ld in s.loads if ld.tensor == part.outputs[0]}
    return chain_moved(part, reader) if len(places) == 1 else None


def chain_moved(part: Computed, reader: Computed) -> Outcome:
    """Put element-wise arithmetic into the movement that reads it, or into arithmetic, read in several places."""
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
    """Put cheap element-wise arithmetic into the reduction, row by row, that reads it."""
    if element_wise(part) is None or element_wise(reader) is not None:
        return None
    if not _runs_by_rows(reader):
        return "a sum of products or a window reads its operands as they are"
    times = sum(ld.tensor == part.outputs[0] for s in reader.stages for ld in s.loads)
    if times > 1 and _arithmetic(part)[1]:
        return "arithmetic that takes long would be repeated by every pass over a row"
    return _accepted(part, reader, _inlined(part, reader), _APART)


def share_rows(part: Computed, reader: Computed) -> Outcome:
    """Let a reduction that runs row by row and what reads it run over the same rows in one kernel."""
    if not _runs_by_rows(part) or not (_runs_by_rows(reader) or _streams(reader)):
        return None
    part, reader = settled(part), settled(reader)
    return _accepted(part, reader, rowwise.joined(part, reader), "they share no rows")


def side_by_side(part: Computed, reader: Computed) -> Outcome:
    """Compute element-wise arithmetic beside what it reads, where that is stored all the same for others."""
    if element_wise(part) is None or element_wise(reader) is None or is_movement(part):
        return None
    new = fusing.beside(part, reader)
    if new is None or len(new.reads) > _MOST_TENSORS:
        return None
    return new if _streams(new.canonical) else None


def tidy(part: Computed) -> Computed:
    """Return a part in its simplest form (:func:`roller.models.graph.fusing.tidy`), or unchanged where that fails."""
    try:
        return fusing.tidy(part)
    except ExprError:
        return part


def started(part: Computed) -> Computed:
    """Return a part as fusion starts with it: groups of a convolution are axes."""
    return tidy(fusing.with_affine_axes(part) or part)


def settled(part: Computed) -> Computed:
    """Return a part in the form its kernel is compiled from."""
    try:
        return tidy(part).canonical
    except ExprError:
        return part


def _inlined(part: Computed, reader: Computed) -> Computed | None:
    """Return a reader with a part in its loads; axes of element-wise ones are split as its accesses need."""
    new = fusing.inlined(part, reader)
    return new if new is None or element_wise(new) is None else fusing.with_affine_axes(new) or new


def _arithmetic(part: Computed) -> tuple[int, int]:
    """Return the functions a part evaluates per point, and those of them that take long."""
    calls = [n for s in part.stages for n in walk(s.body) if isinstance(n, Call)]
    return len(calls), sum(FUNCTIONS[c.fn].instruction_class == "special" for c in calls)


def _accepted(part: Computed, reader: Computed, new: Computed | None, reason: str) -> Computed | str:
    """Return a fused part in its simplest form, where templates take it as they took the reader, or its anchor."""
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
