"""Fuses parts of a model into kernels.

Parts are the nodes of a graph after lowering. The rules of :mod:`roller.models.graph.fusion_rules` run in passes, each
over all parts in order, until none applies; :data:`_PASSES` gives the order of the rules and the reason for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from roller.expr import Load
from roller.expr.index_arithmetic import row_major_address, simplify_index
from roller.models.graph import fusion_rewrites, fusion_rules
from roller.models.graph.fusion_rewrites import only_elementwise_stage
from roller.models.graph.fusion_rule_cache import FormCache, NamedForm, Rule
from roller.models.graph.lowered_parts import AliasPart, ComputedPart, PartProtocol
from roller.models.graph.lowering_state import Lowering
from roller_runtime.core.dtypes import DTYPE_BYTES

#: Maximum number of passes over all parts per group of rules.
_MOST_PASSES = 16
#: Alignment of views in bytes, which is the width of a kernel's widest access.
_ALIGN_BYTES = 16

_PASSES: tuple[tuple[Rule, ...], ...] = (
    # Movement (transpose, slice, broadcast, padding) is inlined into its readers' loads if they stay affine.
    (fusion_rules.inline_affine_movement,),
    # Element-wise parts are inlined into their only reader; anchors (reductions, softmax, normalization) append the
    # element-wise part that reads their result. If values change width, a kernel ends at the narrowest value: if
    # possible, a narrowing part is appended to its anchor, and a widening one is inlined into its readers.
    (fusion_rules.chain_unless_narrowing, fusion_rules.append_unless_widening),
    (fusion_rules.inline_affine_movement, fusion_rules.chain_elementwise, fusion_rules.append_unless_widening),
    # The remaining movement may split axes of its readers, or of the part it reads, into digits.
    (fusion_rules.inline_split_movement, fusion_rules.append_split_unless_widening, fusion_rules.chain_into_movement),
    # Element-wise parts become the prologue of row-wise reductions.
    (fusion_rules.chain_elementwise, fusion_rules.append_unless_widening, fusion_rules.inline_prologue),
    (
        fusion_rules.chain_elementwise,
        fusion_rules.append_to_anchor,
        fusion_rules.append_split_to_anchor,
        fusion_rules.inline_prologue,
    ),
    # Parts that share rows become one kernel.
    (fusion_rules.fuse_shared_rows, fusion_rules.append_to_anchor),
    # Element-wise parts join the part whose stored result they read.
    (fusion_rules.merge_with_producer,),
)
#: Rules that apply to every reader of a part; the part is removed once it has no readers.
_MOVING = (fusion_rules.inline_affine_movement, fusion_rules.inline_split_movement)


@dataclass(frozen=True)
class UnfusedPair:
    """Two parts that were not fused, and the reason."""

    producer: str
    reader: str
    reason: str


@dataclass
class FusionState:
    """Parts during fusion; ``None`` marks a part that was fused into another."""

    low: Lowering
    forms: FormCache
    parts: list[PartProtocol | None] = field(default_factory=list)
    readers: dict[str, set[int]] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    cuts: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept = set(self.low.graph.outputs)
        for n, part in enumerate(self.low.parts):
            self.parts.append(None)
            self.put(n, self.forms.named_form_of_part(part) if isinstance(part, ComputedPart) else part)

    def put(self, n: int, part: PartProtocol | None) -> None:
        """Replace the part at ``n`` and update readers and writers."""
        old = self.parts[n]
        for name in old.inputs if old is not None else ():
            self.readers[name].discard(n)
        self.parts[n] = part
        if part is not None:
            self.writers.update(dict.fromkeys(part.outputs, n))
            for name in part.inputs:
                self.readers.setdefault(name, set()).add(n)

    def readers_of(self, part: NamedForm) -> list[int]:
        """Return the positions of the parts that read a part's only output."""
        return sorted(self.readers.get(part.outputs[0], ()))

    def joined(self, rule: Rule, part: NamedForm, reader: NamedForm) -> NamedForm | None:
        """Return the part that a rule makes of two; otherwise ``None``. Record the reason if the rule refuses."""
        found = self.forms.joined(rule, part, reader)
        edge = part.outputs[0], reader.outputs[0]
        if isinstance(found, str):
            self.cuts[edge] = found
        elif found is not None:
            self.cuts.pop(edge, None)
            return found
        return None


def fuse_parts(low: Lowering) -> list[UnfusedPair]:
    """Fuse the parts of a lowering in place; return the pairs of producer and reader that were not fused."""
    low.parts = [q for p in low.parts for q in (_split_outputs(p) if isinstance(p, ComputedPart) else [p])]
    _read_through_views(low)
    state = FusionState(low, FormCache())
    _change_all_parts(state, fusion_rules.initial_form)
    for group in _PASSES:
        _apply_until_stable(state, group)
    _change_all_parts(state, fusion_rules.final_form)
    low.parts = [p for p in state.parts if p is not None]
    low.drop_unread_parts()
    return [UnfusedPair(a, b, why) for (a, b), why in state.cuts.items()]


def _change_all_parts(state: FusionState, change: fusion_rules.Change) -> None:
    for n, part in enumerate(state.parts):
        if isinstance(part, NamedForm):
            state.put(n, state.forms.apply_change(change, part))


def _apply_until_stable(state: FusionState, group: Iterable[Rule]) -> None:
    for _ in range(_MOST_PASSES):
        changed = False
        for rule in group:
            # Movement rules visit parts front to back, so that chains of movements merge; other rules visit readers
            # first, so that the later of two anchors takes the sum of both.
            order = range(len(state.parts))
            for n in order if rule in _MOVING else reversed(order):
                part = state.parts[n]
                if isinstance(part, NamedForm) and len(part.form.outputs) == 1:
                    changed |= _apply_rule(state, rule, n, part)
        if not changed:
            return


def _apply_rule(state: FusionState, rule: Rule, n: int, part: NamedForm) -> bool:
    """Apply a rule to a part and its readers; return whether a part changed."""
    if rule in _MOVING:
        return fusion_rules.is_movement(part.form) and _inline_movement(state, rule, n, part)
    if rule is fusion_rules.merge_with_producer:
        return _merge_with_reader(state, n, part)
    found = state.readers_of(part)
    reader = state.parts[found[0]] if len(found) == 1 and part.outputs[0] not in state.kept else None
    new = state.joined(rule, part, reader) if isinstance(reader, NamedForm) else None
    if new is None:
        return False
    state.put(n, None)
    state.put(found[0], new)
    return True


def _inline_movement(state: FusionState, rule: Rule, n: int, part: NamedForm) -> bool:
    """Inline a movement into each reader that accepts it; return whether any did."""
    changed = False
    for at in state.readers_of(part):
        reader = state.parts[at]
        new = state.joined(rule, part, reader) if isinstance(reader, NamedForm) else None
        if new is not None:
            state.put(at, new)
            changed = True
    if changed and not state.readers_of(part) and part.outputs[0] not in state.kept:
        state.put(n, None)
    return changed


def _merge_with_reader(state: FusionState, n: int, part: NamedForm) -> bool:
    """Merge into a part one reader whose other inputs are computed earlier; return whether there was such a reader."""
    for at in state.readers_of(part):
        reader = state.parts[at]
        if not isinstance(reader, NamedForm):
            continue
        if any(state.writers.get(name, -1) >= n for name in reader.inputs if name != part.outputs[0]):
            continue
        new = state.joined(fusion_rules.merge_with_producer, part, reader)
        if new is not None:
            state.put(n, new)
            state.put(at, None)
            return True
    return False


# --- before ---------------------------------------------------------------------------------------


def _split_outputs(part: ComputedPart) -> list[ComputedPart]:
    """Return one part per output if outputs share no stage (for example, the outputs of Split)."""
    if len(part.outputs) == 1:
        return [part]
    apart = _part_per_output_if_disjoint(part)
    if apart is None:
        return [part]  # for example the state and the output of a recurrent cell
    return [part] if any(set(p.outputs) != {p.stages[-1].name} for p in apart) else apart


def _part_per_output_if_disjoint(part: ComputedPart) -> list[ComputedPart] | None:
    """Return a part per output, in linear time; ``None`` if two outputs share a stage."""
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
        apart.append(ComputedPart(tuple(part.reads[k] for k in sorted(read)),
                                  tuple(part.stages[k] for k in sorted(stages)),
                              (output,), part.nodes))  # fmt: skip
    return apart


def _read_through_views(low: Lowering) -> None:
    """Let parts read a view's source directly, in the view's shape; drop unused views."""
    root: dict[str, str] = {}
    parts: list[PartProtocol] = []
    for part in low.parts:
        if isinstance(part, ComputedPart):
            part = _read_view_sources(part, root)
            part = _alias_if_contiguous_copy(part) or part
        if isinstance(part, AliasPart):
            source = root.get(part.source, part.source)
            if not part.offset and low.values[source].elements == low.values[part.target].elements:
                root[part.target] = source
            part = AliasPart(source, part.target, part.offset, part.nodes)
        parts.append(part)
    low.parts = parts
    low.drop_unread_parts()


def _alias_if_contiguous_copy(part: ComputedPart) -> AliasPart | None:
    """Return the view equivalent to a part that copies a contiguous range (a slice of a batch); otherwise ``None``."""
    stage = only_elementwise_stage(part)
    load = None if stage is None else stage.body
    if stage is None or not isinstance(load, Load) or load.guard or part.dtypes[load.tensor] != stage.output.dtype:
        return None
    read = simplify_index(row_major_address(load.index, part.shapes[load.tensor]), stage.extents)
    written = simplify_index(row_major_address(stage.store, stage.output.shape), stage.extents)
    if {*read.terms} != {*written.terms} or read.const * DTYPE_BYTES[stage.output.dtype] % _ALIGN_BYTES:
        return None
    return AliasPart(load.tensor, stage.name, read.const, part.nodes)


def _read_view_sources(part: ComputedPart, root: dict[str, str]) -> ComputedPart:
    for t in part.reads:
        if t.name in root:
            renamed = fusion_rewrites.read_source_instead_of_view(part, t.name, root[t.name])
            part = part if renamed is None else renamed
    return part
