"""Searches for the changes that help a profile most: each with default parameters, and pairs of the best ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from roller.errors import RollerError
from roller.insight.step.graph import StepGraph
from roller.insight.step.simulate import simulate
from roller.insight.whatif.memory_effect import MemoryEffect, MemoryOf, memory_effect
from roller.insight.whatif.optimizer_bytes import KINDS, possible_optimizers
from roller.insight.whatif.predict import HARDLY, Answer, what_if
from roller.insight.whatif.primitives import without_overhead
from roller.insight.whatif.remove_cuda_module_loading import remove_module_loading
from roller.insight.whatif.repeated_blocks import find_repeated_blocks
from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs import (
    AMP,
    CudaGraph,
    ForeachOptimizer,
    FusedOptimizer,
    FusePointwise,
    LoaderWorkers,
    OtherNetwork,
    Recompute,
    RestructuredNorm,
    ZeroTime,
)

#: Number of the best changes that are tried in pairs, and maximum number of predictions in a search.
PAIRED, MOST_ASKED = 4, 19


@dataclass(frozen=True)
class SearchResult:
    """The prediction for changes, or the reason why there is none."""

    changes: tuple[WhatIf, ...]
    answer: Answer | None  # the prediction; ``None`` if the changes do not apply to the profile
    reason: str = ""
    is_bound: bool = False  # whether the changes cannot be implemented, so that their gain is only an upper bound

    @property
    def name(self) -> str:
        """Names of the changes."""
        return " + ".join(map(str, self.changes))

    def memory_effect(self, graph: StepGraph, memory_of: MemoryOf | None) -> MemoryEffect:
        """Return the effect of the changes on the step's memory; 0 if the graph does not change."""
        if self.answer is not None and not self.answer.is_changed:
            return MemoryEffect(0)
        return memory_effect(graph, self.changes, memory_of)


def search(
    graph: StepGraph, *, force: bool = False, seen: Callable[[SearchResult], None] = lambda found: None
) -> tuple[SearchResult, ...]:
    """Predict all applicable changes and pairs of the best ones, largest gain first.

    Parameters
    ----------
    force
        See :func:`~roller.insight.whatif.predict.what_if`.
    seen
        Called with each prediction as soon as it is known.

    Raises
    ------
    RollerError
        If too much of the profile is unexplained.
    """
    baseline = simulate(remove_module_loading(without_overhead(graph)))
    found: list[SearchResult] = []

    def try_changes(changes: tuple[WhatIf, ...], is_bound: bool) -> None:
        try:
            one = SearchResult(changes, what_if(graph, *changes, force=force, baseline=baseline), is_bound=is_bound)
        except RollerError as error:
            one = SearchResult(changes, None, str(error), is_bound)
        found.append(one)
        seen(one)

    if not force:
        what_if(graph, _return_unchanged)  # raises for an unexplained profile
    for change in _applicable_changes(graph):
        try_changes((change,), isinstance(change, ZeroTime))
    good = [x for x in _sort_by_gain(found) if not x.is_bound and x.answer and not x.answer.is_hardly_anything]
    good = [x for x in good if x.answer and x.answer.gain > 0]
    # sorted by trial order, so that a pair's name does not depend on which change gains more
    for one, other in combinations(sorted(good[:PAIRED], key=found.index), 2):
        if type(one.changes[0]) is not type(other.changes[0]):
            try_changes(one.changes + other.changes, False)
    alone = {x.name: x.answer.gain for x in found if x.answer is not None and len(x.changes) == 1}
    return tuple(x for x in _sort_by_gain(found) if _pair_gains_more_than_each(x, alone))


def _pair_gains_more_than_each(found: SearchResult, alone: Mapping[str, float]) -> bool:
    if len(found.changes) == 1 or found.answer is None:
        return True
    return found.answer.gain > max(alone[str(c)] for c in found.changes) + HARDLY


def _return_unchanged(graph: StepGraph) -> StepGraph:
    return graph


def _applicable_changes(graph: StepGraph) -> Iterator[WhatIf]:
    kinds = {t.kind for t in graph.tasks}
    phases = {t.context.phase for t in graph.tasks}
    if "data" in kinds:
        yield LoaderWorkers()
        yield ZeroTime(kind="data")
    if phases >= {"forward", "backward"}:
        yield AMP()
        yield RestructuredNorm()
        if blocks := find_repeated_blocks(graph):
            yield Recompute(blocks)
    if "optimizer" in phases:
        # assume the possible optimizer that moves the most bytes
        likely = max(possible_optimizers(graph) or KINDS, key=lambda kind: sum(KINDS[kind]))
        yield FusedOptimizer(likely, "model" if graph.gradients else "factor")
        yield ForeachOptimizer()
        yield ZeroTime(phase="optimizer")
    if graph.has_device:
        yield FusePointwise()
        yield CudaGraph()
    for kind in ("collective", "copy"):
        if kind in kinds:
            yield ZeroTime(kind=kind)
    if "collective" in kinds:
        yield OtherNetwork()


def _sort_by_gain(found: Sequence[SearchResult]) -> list[SearchResult]:
    return sorted(found, key=lambda x: (x.answer is None, -(x.answer.gain if x.answer else 0.0), x.name))
