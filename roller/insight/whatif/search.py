"""Which changes would help a profile the most: every one that needs to be told nothing, alone and the best in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from roller.errors import RollerError
from roller.insight.step.graph import StepGraph
from roller.insight.step.simulate import simulate
from roller.insight.whatif.first_launches import warm
from roller.insight.whatif.optimizer_bytes import KINDS, kinds_of
from roller.insight.whatif.predict import HARDLY, Answer, what_if
from roller.insight.whatif.primitives import without_overhead
from roller.insight.whatif.what_if import WhatIf
from roller.insight.whatif.whatifs import (
    AMP,
    CudaGraph,
    ForeachOptimizer,
    FusedOptimizer,
    FusePointwise,
    LoaderWorkers,
    OtherNetwork,
    RestructuredNorm,
    ZeroTime,
)

#: The best of them are tried in pairs; and how many questions that makes at most.
PAIRED, MOST_ASKED = 4, 18


@dataclass(frozen=True)
class Found:
    """What a change would bring, or why that cannot be said.

    Parameters
    ----------
    changes
        What was changed.
    answer
        ``None`` where the profile does not bear the question.
    reason
        Why not.
    is_bound
        Whether nobody can build it: it only says what there is to gain at most.
    """

    changes: tuple[WhatIf, ...]
    answer: Answer | None
    reason: str = ""
    is_bound: bool = False

    @property
    def name(self) -> str:
        """The changes, by name."""
        return " + ".join(map(str, self.changes))


def search(
    graph: StepGraph, *, force: bool = False, seen: Callable[[Found], None] = lambda found: None
) -> tuple[Found, ...]:
    """Return what every change would bring, what helps most first.

    Parameters
    ----------
    graph
        Of a profile.
    force
        As for :func:`~roller.insight.whatif.predict.what_if`.
    seen
        Is told of each as soon as it is known.

    Raises
    ------
    RollerError
        The profile cannot be explained.
    """
    baseline = simulate(warm(without_overhead(graph)))
    found: list[Found] = []

    def ask(changes: tuple[WhatIf, ...], is_bound: bool) -> None:
        try:
            one = Found(changes, what_if(graph, *changes, force=force, baseline=baseline), is_bound=is_bound)
        except RollerError as error:
            one = Found(changes, None, str(error), is_bound)
        found.append(one)
        seen(one)

    if not force:
        what_if(graph, _nothing)  # refuses what cannot be explained, once
    for change in _candidates(graph):
        ask((change,), isinstance(change, ZeroTime))
    good = [x for x in _ranked(found) if not x.is_bound and x.answer and not x.answer.is_hardly_anything]
    good = [x for x in good if x.answer and x.answer.gain > 0]
    for one, other in combinations(good[:PAIRED], 2):
        if type(one.changes[0]) is not type(other.changes[0]):
            ask(one.changes + other.changes, False)
    alone = {x.name: x.answer.gain for x in found if x.answer is not None and len(x.changes) == 1}
    return tuple(x for x in _ranked(found) if _adds(x, alone))


def _adds(found: Found, alone: Mapping[str, float]) -> bool:
    """Return whether a pair helps more than each of the two does without the other; one alone always counts."""
    if len(found.changes) == 1 or found.answer is None:
        return True
    return found.answer.gain > max(alone[str(c)] for c in found.changes) + HARDLY


def _nothing(graph: StepGraph) -> StepGraph:
    return graph


def _candidates(graph: StepGraph) -> Iterator[WhatIf]:
    """Yield the changes that a profile's own tasks suggest."""
    kinds = {t.kind for t in graph.tasks}
    phases = {t.context.phase for t in graph.tasks}
    if "data" in kinds:
        yield LoaderWorkers()
        yield ZeroTime(kind="data")
    if phases >= {"forward", "backward"}:
        yield AMP()
        yield RestructuredNorm()
    if "optimizer" in phases:
        # of what the optimizer may be, as far as the profile marks it, the one that moves most is assumed
        likely = max(kinds_of(graph) or KINDS, key=lambda kind: sum(KINDS[kind]))
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


def _ranked(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda x: (x.answer is None, -(x.answer.gain if x.answer else 0.0), x.name))
