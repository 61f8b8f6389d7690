"""Which parts of a model become one kernel.

Parts are the nodes of a graph after lowering. The rules of :mod:`roller.models.graph.rules` run in passes, each over
all parts in order, until none applies:

1. Movement (transpose, slice, broadcast, padding) goes into the loads of its readers where they stay affine.
2. Element-wise parts with one reader go into it; the anchors (whatever reduces, softmax and normalisation included)
   take the element-wise part that reads their result behind them. Neither repeats arithmetic. Where values change their
   width, kernels end where it is least: what narrows goes behind its anchor, what widens into its readers, if they can.
3. What is left of movement may split axes of its readers, or of what it reads, into digits.
4. Element-wise parts become the prologue of reductions that run row by row, and those that share rows one kernel.
5. Element-wise parts that read what is stored for others too are computed beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from roller.core.dtypes import DTYPE_BYTES
from roller.expr import Load
from roller.expr.index_arithmetic import address, simplified
from roller.models.graph import fusing, rules
from roller.models.graph.fusing import element_wise
from roller.models.graph.lowering import Lowering
from roller.models.graph.parts import Alias, Computed, Named
from roller.models.graph.unnamed_parts import Forms, Piece, Rule

#: Passes over all parts at most; each but the last one fuses something.
_MOST_PASSES = 16
#: Views begin at multiples of the widest access of a kernel.
_ALIGN_BYTES = 16

_PASSES: tuple[tuple[Rule, ...], ...] = (
    (rules.move_plainly,),
    (rules.chain_wide, rules.absorb_narrow),
    (rules.move_plainly, rules.chain, rules.absorb_narrow),
    (rules.move_split, rules.absorb_split_narrow, rules.chain_moved),
    (rules.chain, rules.absorb_narrow, rules.prologue),
    (rules.chain, rules.absorb, rules.absorb_split, rules.prologue),
    (rules.share_rows, rules.absorb),
    (rules.side_by_side,),
)
#: Rules that apply to every reader of a part, which goes away once it has none.
_MOVING = (rules.move_plainly, rules.move_split)


@dataclass(frozen=True)
class Cut:
    """Two parts that stayed two kernels, and why."""

    producer: str
    reader: str
    reason: str


@dataclass
class Fusion:
    """Parts while they are being fused; ``None`` where one has gone into another."""

    low: Lowering
    forms: Forms
    parts: list[Named | None] = field(default_factory=list)
    readers: dict[str, set[int]] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    cuts: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Enter the parts of the lowering."""
        self.kept = set(self.low.graph.outputs)
        for n, part in enumerate(self.low.parts):
            self.parts.append(None)
            self.put(n, self.forms.piece(part) if isinstance(part, Computed) else part)

    def put(self, n: int, part: Named | None) -> None:
        """Replace a part."""
        old = self.parts[n]
        for name in old.inputs if old is not None else ():
            self.readers[name].discard(n)
        self.parts[n] = part
        if part is not None:
            self.writers.update(dict.fromkeys(part.outputs, n))
            for name in part.inputs:
                self.readers.setdefault(name, set()).add(n)

    def readers_of(self, part: Piece) -> list[int]:
        """Return the positions of what reads a part's only output."""
        return sorted(self.readers.get(part.outputs[0], ()))

    def joined(self, rule: Rule, part: Piece, reader: Piece) -> Piece | None:
        """Return what a rule makes of two parts; where it makes nothing, remember why."""
        found = self.forms.joined(rule, part, reader)
        edge = part.outputs[0], reader.outputs[0]
        if isinstance(found, str):
            self.cuts[edge] = found
        elif found is not None:
            self.cuts.pop(edge, None)
            return found
        return None


def fuse(low: Lowering) -> list[Cut]:
    """Fuse the parts of a lowering in place and return what stayed apart though one reads the other."""
    low.parts = [q for p in low.parts for q in (_separate(p) if isinstance(p, Computed) else [p])]
    _resolve_views(low)
    state = Fusion(low, Forms())
    _each(state, rules.started)
    for group in _PASSES:
        _until_stable(state, group)
    _each(state, rules.settled)
    low.parts = [p for p in state.parts if p is not None]
    low.drop_unread()
    return [Cut(a, b, why) for (a, b), why in state.cuts.items()]


def _each(state: Fusion, change: rules.Change) -> None:
    for n, part in enumerate(state.parts):
        if isinstance(part, Piece):
            state.put(n, state.forms.changed(change, part))


def _until_stable(state: Fusion, group: Iterable[Rule]) -> None:
    for _ in range(_MOST_PASSES):
        changed = False
        for rule in group:
            # Movement front to back, so that chains of it fall together; else readers first: of two anchors that meet
            # in a sum the later one takes it.
            order = range(len(state.parts))
            for n in order if rule in _MOVING else reversed(order):
                part = state.parts[n]
                if isinstance(part, Piece) and len(part.form.outputs) == 1:
                    changed |= _apply(state, rule, n, part)
        if not changed:
            return


def _apply(state: Fusion, rule: Rule, n: int, part: Piece) -> bool:
    """Apply a rule to a part and what reads it; say whether that changed something."""
    if rule in _MOVING:
        return rules.is_movement(part.form) and _moved(state, rule, n, part)
    if rule is rules.side_by_side:
        return _beside(state, n, part)
    found = state.readers_of(part)
    reader = state.parts[found[0]] if len(found) == 1 and part.outputs[0] not in state.kept else None
    new = state.joined(rule, part, reader) if isinstance(reader, Piece) else None
    if new is None:
        return False
    state.put(n, None)
    state.put(found[0], new)
    return True


def _moved(state: Fusion, rule: Rule, n: int, part: Piece) -> bool:
    """Put movement into each of its readers that takes it."""
    changed = False
    for at in state.readers_of(part):
        reader = state.parts[at]
        new = state.joined(rule, part, reader) if isinstance(reader, Piece) else None
        if new is not None:
            state.put(at, new)
            changed = True
    if changed and not state.readers_of(part) and part.outputs[0] not in state.kept:
        state.put(n, None)
    return changed


def _beside(state: Fusion, n: int, part: Piece) -> bool:
    """Compute a reader beside a part, where all else that it reads is there already."""
    for at in state.readers_of(part):
        reader = state.parts[at]
        if not isinstance(reader, Piece):
            continue
        if any(state.writers.get(name, -1) >= n for name in reader.inputs if name != part.outputs[0]):
            continue
        new = state.joined(rules.side_by_side, part, reader)
        if new is not None:
            state.put(n, new)
            state.put(at, None)
            return True
    return False


# --- before ---------------------------------------------------------------------------------------


def _separate(part: Computed) -> list[Computed]:
    """Return one part per output where outputs share no stage (the parts of a split)."""
    if len(part.outputs) == 1:
        return [part]
    apart = _by_output(part)
    if apart is None:
        return [part]  # the state of a recurrent cell, and what it shows of it
    return [part] if any(set(p.outputs) != {p.stages[-1].name} for p in apart) else apart


def _by_output(part: Computed) -> list[Computed] | None:
    """Return a part per output, ``None`` where two of them share a stage; linear in stages."""
    place = {s.name: k for k, s in enumerate(part.stages)}
    reads = {t.name: k for k, t in enumerate(part.reads)}
    taken: set[int] = set()
    apart = []
    for output in part.outputs:
        stages, read, left = set[int](), set[int](), [output]
        while left:
            name = left.pop()
            if name not in place:
                read.add(reads[name])
            elif place[name] not in stages:
                stages.add(place[name])
                left.extend(ld.tensor for ld in part.stages[place[name]].loads)
        if stages & taken:
            return None
        taken |= stages
        apart.append(Computed(tuple(part.reads[k] for k in sorted(read)), tuple(part.stages[k] for k in sorted(stages)),
                              (output,), part.nodes))  # fmt: skip
    return apart


def _resolve_views(low: Lowering) -> None:
    """Let parts read what views show, in the view's shape; views nobody else needs go away."""
    root: dict[str, str] = {}
    parts: list[Named] = []
    for part in low.parts:
        if isinstance(part, Computed):
            part = _reading_roots(part, root)
            part = _as_view(part) or part
        if isinstance(part, Alias):
            source = root.get(part.source, part.source)
            if not part.offset and low.values[source].elements == low.values[part.target].elements:
                root[part.target] = source
            part = Alias(source, part.target, part.offset, part.nodes)
        parts.append(part)
    low.parts = parts
    low.drop_unread()


def _as_view(part: Computed) -> Alias | None:
    """Return the view that a part is which reads neighbours and leaves them neighbours (a slice of a batch)."""
    stage = element_wise(part)
    load = None if stage is None else stage.body
    if stage is None or not isinstance(load, Load) or load.guard or part.dtypes[load.tensor] != stage.output.dtype:
        return None
    read = simplified(address(load.index, part.shapes[load.tensor]), stage.extents)
    written = simplified(address(stage.store, stage.output.shape), stage.extents)
    if {*read.terms} != {*written.terms} or read.const * DTYPE_BYTES[stage.output.dtype] % _ALIGN_BYTES:
        return None
    return Alias(load.tensor, stage.name, read.const, part.nodes)


def _reading_roots(part: Computed, root: dict[str, str]) -> Computed:
    for t in part.reads:
        if t.name in root:
            renamed = fusing.reading(part, t.name, root[t.name])
            part = part if renamed is None else renamed
    return part
