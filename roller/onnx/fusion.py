"""Which parts of a model become one kernel.

Parts are the nodes of a graph after lowering. Rules run in passes, each over all parts in order, until none applies:

0. Contiguous pieces of a value are views of it.
1. Movement (transpose, slice, broadcast, padding) goes into the loads of its readers where they stay affine.
2. Element-wise parts with one reader go into it; the anchors (whatever reduces, softmax and normalisation included)
   take the element-wise part that reads their result behind them. Neither repeats arithmetic.
3. What is left of movement may split axes of its readers, or of what it reads, into digits.
4. Element-wise parts become the prologue of reductions that run row by row, and those that share rows one kernel.
5. Element-wise parts that read what is stored for others too are computed beside it.

A part that resulted must still be of the structure its anchor had: a sum of products stays one that is tiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from roller.errors import ExprError
from roller.expr import DTYPE_BYTES, FUNCTIONS, Call, Load, walk
from roller.expr.digits import address, simplified
from roller.onnx import fusing, rowwise
from roller.onnx.fusing import element_wise, plain_load, size_of
from roller.onnx.lowered import Computed, Lowering, Part, Viewed, only

#: Nodes of one scalar tree: beyond, a chain is cut.
_MOST_NODES = 192
#: Passes over all parts at most; each but the last one fuses something.
_MOST_PASSES = 16
#: Views begin at multiples of the widest access of a kernel.
_ALIGN_BYTES = 16
#: Loads of different tensors one element-wise kernel may have.
_MOST_TENSORS = 8

Rule = Callable[["Fusion", int], bool]


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
    parts: list[Part | None] = field(default_factory=list)
    readers: dict[str, set[int]] = field(default_factory=dict)
    writers: dict[str, int] = field(default_factory=dict)
    cuts: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kept = set(self.low.graph.outputs)
        for part in self.low.parts:
            self._add(part)

    def _add(self, part: Part) -> None:
        self.parts.append(part)
        self._read(len(self.parts) - 1, part.inputs)
        self.writers.update(dict.fromkeys(part.outputs, len(self.parts) - 1))

    def _read(self, n: int, names: Iterable[str]) -> None:
        for name in names:
            self.readers.setdefault(name, set()).add(n)

    def put(self, n: int, part: Part | None) -> None:
        """Replace a part."""
        old = self.parts[n]
        for name in old.inputs if old is not None else ():
            self.readers[name].discard(n)
        self.parts[n] = part
        if part is not None:
            self._read(n, part.inputs)
            self.writers.update(dict.fromkeys(part.outputs, n))

    def readers_of(self, part: Computed) -> list[int]:
        """Return the positions of what reads a part's only output."""
        return sorted(self.readers.get(part.outputs[0], ()))

    def refuse(self, producer: Computed, reader: Part, reason: str) -> bool:
        """Remember why two parts stay two."""
        self.cuts[producer.outputs[0], reader.outputs[0]] = reason
        return False


def fuse(low: Lowering) -> list[Cut]:
    """Fuse the parts of a lowering in place and return what stayed apart though one reads the other."""
    low.parts = [q for p in low.parts for q in (_separate(p) if isinstance(p, Computed) else [p])]
    _resolve_views(low)
    low.parts = [_tidy(fusing.with_affine_axes(p) or p) if isinstance(p, Computed) else p for p in low.parts]
    state = Fusion(low)
    for rules in _PASSES:
        _until_stable(state, rules)
    low.parts = [_settled(p) if isinstance(p, Computed) else p for p in state.parts if p is not None]
    low.drop_unread()
    return [Cut(a, b, why) for (a, b), why in state.cuts.items()]


def _until_stable(state: Fusion, rules: Iterable[Rule]) -> None:
    for _ in range(_MOST_PASSES):
        changed = False
        for rule in rules:
            # Movement front to back, so that chains of it fall together; else readers first: of two anchors that meet
            # in a sum the later one takes it.
            order = range(len(state.parts))
            for n in order if rule in (_move_plainly, _move_split) else reversed(order):
                changed |= state.parts[n] is not None and rule(state, n)
        if not changed:
            return


# --- what a part is -----------------------------------------------------------------------------


def _is_movement(part: Computed) -> bool:
    stage = element_wise(part)
    return stage is not None and plain_load(stage) is not None


def _arithmetic(part: Computed) -> tuple[int, int]:
    """Return the functions a part evaluates per point, and those of them that take long."""
    calls = [n for s in part.stages for n in walk(s.body) if isinstance(n, Call)]
    return len(calls), sum(FUNCTIONS[c.fn].instruction_class == "special" for c in calls)


def _separate(part: Computed) -> list[Computed]:
    """Return one part per output where outputs share no stage (the parts of a split)."""
    if len(part.outputs) == 1:
        return [part]
    apart = [only(part, (o,)) for o in part.outputs]
    if sum(len(p.stages) for p in apart) > len(part.stages):
        return [part]  # the state of a recurrent cell, and what it shows of it
    return [part] if any(set(p.outputs) != {p.stages[-1].name} for p in apart) else apart


def _tidy(part: Computed) -> Computed:
    try:
        return fusing.tidy(part)
    except ExprError:
        return part


def _settled(part: Computed) -> Computed:
    """Return a part in the form its kernel is compiled from."""
    try:
        return _tidy(part).canonical
    except ExprError:
        return part


def _resolve_views(low: Lowering) -> None:
    """Let parts read what views show, in the view's shape; views nobody else needs go away."""
    root: dict[str, str] = {}
    parts: list[Part] = []
    for part in low.parts:
        if isinstance(part, Computed):
            part = _reading_roots(part, root)
            part = _as_view(part) or part
        if isinstance(part, Viewed):
            source = root.get(part.source, part.source)
            if not part.offset and low.values[source].elements == low.values[part.target].elements:
                root[part.target] = source
            part = Viewed(source, part.target, part.offset, part.nodes)
        parts.append(part)
    low.parts = parts
    low.drop_unread()


def _as_view(part: Computed) -> Viewed | None:
    """Return the view that a part is which reads neighbours and leaves them neighbours (a slice of a batch)."""
    stage = element_wise(part)
    load = None if stage is None else stage.body
    if stage is None or not isinstance(load, Load) or load.guard or part.dtypes[load.tensor] != stage.output.dtype:
        return None
    read = simplified(address(load.index, part.shapes[load.tensor]), stage.extents)
    written = simplified(address(stage.store, stage.output.shape), stage.extents)
    if {*read.terms} != {*written.terms} or read.const * DTYPE_BYTES[stage.output.dtype] % _ALIGN_BYTES:
        return None
    return Viewed(load.tensor, stage.name, read.const, part.nodes)


def _reading_roots(part: Computed, root: dict[str, str]) -> Computed:
    for t in part.reads:
        if t.name in root:
            renamed = fusing.reading(part, t.name, root[t.name])
            part = part if renamed is None else renamed
    return part


# --- rules: each says whether it changed something at part ``n`` -----------------------------------


def _move_plainly(state: Fusion, n: int) -> bool:
    """Put movement into its readers where their accesses stay affine."""
    return _move(state, n, split=False)


def _move_split(state: Fusion, n: int) -> bool:
    """Put movement into its readers where splitting their axes makes accesses affine."""
    return _move(state, n, split=True)


def _move(state: Fusion, n: int, split: bool) -> bool:
    part = state.parts[n]
    if not isinstance(part, Computed) or not _is_movement(part):
        return False
    changed = False
    for at in state.readers_of(part):
        reader = state.parts[at]
        if not isinstance(reader, Computed):
            continue
        new = _inlined(part, reader)
        new = fusing.with_affine_axes(new) if new is not None and split and element_wise(new) is None else new
        new = _accepted(state, part, reader, new, "positions do not compose")
        if new is not None:
            state.put(at, new)
            changed = True
    if changed and not state.readers_of(part) and part.outputs[0] not in state.kept:
        state.put(n, None)
    return changed


def _inlined(part: Computed, reader: Computed) -> Computed | None:
    """Return a reader with a part in its loads; axes of element-wise ones are split as its accesses need."""
    new = fusing.inlined(part, reader)
    return new if new is None or element_wise(new) is None else fusing.with_affine_axes(new) or new


def _sole_reader(state: Fusion, n: int) -> tuple[Computed, int, Computed] | None:
    """Return a part, and the only part that reads its only output."""
    part = state.parts[n]
    if not isinstance(part, Computed) or len(part.outputs) != 1 or part.outputs[0] in state.kept:
        return None
    found = state.readers_of(part)
    reader = state.parts[found[0]] if len(found) == 1 else None
    return (part, found[0], reader) if isinstance(reader, Computed) else None


def _replace(state: Fusion, n: int, at: int, new: Computed | None) -> bool:
    """Put a fused part where its reader was; say whether there is one."""
    if new is None:
        return False
    state.put(n, None)
    state.put(at, new)
    return True


def _absorb(state: Fusion, n: int) -> bool:
    """Let an anchor take the element-wise part that reads its result."""
    return _append(state, n, split=False)


def _absorb_split(state: Fusion, n: int) -> bool:
    return _append(state, n, split=True)


def _append(state: Fusion, n: int, split: bool) -> bool:
    found = _sole_reader(state, n)
    if found is None or element_wise(found[0]) is not None or element_wise(found[2]) is None:
        return False
    part, at, reader = found
    new = fusing.appended(part, reader)
    new = new if new is None or not split else fusing.with_affine_axes(new)
    return _replace(
        state, n, at, _accepted(state, part, reader, new, "the reader does not take every element once, in place")
    )


def _chain(state: Fusion, n: int) -> bool:
    """Put element-wise arithmetic into the element-wise arithmetic that alone reads it."""
    found = _sole_reader(state, n)
    if found is None or element_wise(found[0]) is None or _is_movement(found[2]):
        return False
    # Read in several places, it may better end what it reads.
    places = {ld.index for s in found[2].stages for ld in s.loads if ld.tensor == found[0].outputs[0]}
    return len(places) == 1 and _inline(state, n, found)


def _chain_moved(state: Fusion, n: int) -> bool:
    """Put element-wise arithmetic into the movement that alone reads it, or that is read in several places."""
    found = _sole_reader(state, n)
    return found is not None and element_wise(found[0]) is not None and _inline(state, n, found)


def _inline(state: Fusion, n: int, found: tuple[Computed, int, Computed]) -> bool:
    part, at, reader = found
    into = element_wise(reader) or reader.stages[-1]
    if len(reader.stages) > 1 and any(ld.tensor == part.outputs[0] for s in reader.stages[:-1] for ld in s.loads):
        return False
    if into.combiner is not None:
        return False
    if into.points > part.stages[0].points and _arithmetic(part)[0]:
        return state.refuse(part, reader, "arithmetic would be repeated for every element it is spread over")
    new = _inlined(part, reader)
    return _replace(state, n, at, _accepted(state, part, reader, new, "positions do not compose"))


def _prologue(state: Fusion, n: int) -> bool:
    """Put cheap element-wise arithmetic into the reductions, row by row, that alone read it."""
    found = _sole_reader(state, n)
    if found is None or element_wise(found[0]) is None or element_wise(found[2]) is not None:
        return False
    part, at, reader = found
    times = sum(ld.tensor == part.outputs[0] for s in reader.stages for ld in s.loads)
    if reader.structure != "rows":
        return state.refuse(part, reader, "a sum of products or a window reads its operands as they are")
    if times > 1 and _arithmetic(part)[1]:
        return state.refuse(part, reader, "arithmetic that takes long would be repeated by every pass over a row")
    new = _inlined(part, reader)
    return _replace(state, n, at, _accepted(state, part, reader, new, "positions do not compose"))


def _accepted(state: Fusion, part: Computed, reader: Computed, new: Computed | None, reason: str) -> Computed | None:
    """Return a fused part in its simplest form, where templates take it as they took the reader, or its anchor."""
    anchors = [p for p in (part, reader) if element_wise(p) is None]
    if new is not None:
        new = _tidy(new)
        if any(size_of(s.body) > _MOST_NODES for s in new.stages) or len(new.reads) > _MOST_TENSORS:
            reason = "the chain is long enough"
        elif anchors and not fusing.is_affine(new) and fusing.is_affine(anchors[0]):
            reason = "positions of the reduction would need divisions"
        else:
            before, after = (anchors[0] if anchors else reader).structure, new.structure
            if after is not None and after == before:
                state.cuts.pop((part.outputs[0], reader.outputs[0]), None)
                return new
            reason = f"the kernel would be {after or 'no expression'} instead of {before}"
    state.cuts[part.outputs[0], reader.outputs[0]] = reason
    return None


def _rows(state: Fusion, n: int) -> bool:
    """Let a reduction that runs row by row and what alone reads it run over the same rows in one kernel."""
    found = _sole_reader(state, n)
    if found is None or found[0].structure != "rows" or found[2].structure not in ("rows", "streaming"):
        return False
    part, at, reader = _settled(found[0]), found[1], _settled(found[2])
    return _replace(state, n, at, _accepted(state, part, reader, rowwise.joined(part, reader), "they share no rows"))


def _side_by_side(state: Fusion, n: int) -> bool:
    """Compute element-wise arithmetic beside what it reads, where that is stored all the same for others."""
    part = state.parts[n]
    if not isinstance(part, Computed) or element_wise(part) is None or _is_movement(part):
        return False
    for at in state.readers_of(part):
        reader = state.parts[at]
        if not isinstance(reader, Computed) or element_wise(reader) is None:
            continue
        if any(state.writers.get(name, -1) >= n for name in reader.inputs if name != part.outputs[0]):
            continue  # what it reads besides is not there yet
        new = fusing.beside(part, reader)
        if new is not None and new.canonical.structure == "streaming" and len(new.reads) <= _MOST_TENSORS:
            state.put(n, new)
            state.put(at, None)
            return True
    return False


_PASSES: tuple[tuple[Rule, ...], ...] = (
    (_move_plainly,),
    (_chain, _absorb),
    (_move_plainly, _chain, _absorb),
    (_move_split, _absorb_split, _chain_moved),
    (_chain, _absorb, _prologue),
    (_rows, _absorb),
    (_side_by_side,),
)
