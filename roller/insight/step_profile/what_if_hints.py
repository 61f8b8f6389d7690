"""Hints for a profile: predicted effects of applicable what-ifs, each at the line that it changes most."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from roller.insight.step.breakdown import source_line_of_task
from roller.insight.step.divide_wall_time_among_tasks import wall_time_us
from roller.insight.step.graph import Provenance, StepGraph
from roller.insight.step.simulate import Timeline
from roller.insight.step_profile.find_worthwhile_weight_padding import PaddedWeights
from roller.insight.whatif.memory_effect import UNKNOWN, MemoryEffect, MemoryOf
from roller.insight.whatif.predict import Answer, what_if
from roller.insight.whatif.search import SearchResult, search


@dataclass(frozen=True)
class Hint:
    """Predicted effect of a change to the step."""

    change: str  # the what-ifs, in the syntax of ``roller whatif --do``
    # iteration_s, lower_s, upper_s: time of the changed step, and one expected error below and above
    iteration_s: float = 0.0
    lower_s: float = 0.0
    upper_s: float = 0.0
    delta_s: float = 0.0  # time of the changed step minus time of the unchanged step
    # line, line_delta_s: ``"file:line"`` whose time changes most, and the change of its time; ``""`` if tasks have no
    # lines
    line: str = ""
    line_delta_s: float = 0.0
    is_bound: bool = False  # whether the change cannot be implemented, so that its gain is only an upper bound
    is_hardly_anything: bool = False
    rests_on: Provenance | str = ""  # provenance of the least certain new or changed time
    not_asked: str = ""  # why there is no prediction; ``""`` if there is one
    assumptions: tuple[str, ...] = ()
    is_in_place: bool = False  # whether the step already has the change
    origin: Literal["what-if", "lint"] = "what-if"  # ``"what-if"``, or ``"lint"`` for padded weights
    memory: MemoryEffect = UNKNOWN
    # price_before, price_after: price of a million samples (or steps, if the samples are unknown); ``None`` without an
    # hourly rate
    price_before: float | None = None
    price_after: float | None = None
    # Label of the times: ``"calibrated"`` if the device's rates were measured on it
    kind: Literal["predicted", "calibrated"] = "predicted"

    def label_calibrated(self) -> Hint:
        """Return the hint with the label ``"calibrated"``."""
        rests_on = "calibrated" if self.rests_on == "predicted" else self.rests_on
        return replace(self, kind="calibrated", rests_on=rests_on)

    def with_price(self, per_hour: float, samples: float, before_s: float | None = None) -> Hint:
        """Return the hint with prices per million samples (or per million steps if ``samples`` is 0)."""
        if self.not_asked:
            return self
        per_second = per_hour / 3600 * 1e6 / (samples or 1.0)
        before_s = self.iteration_s - self.delta_s if before_s is None else before_s
        return replace(self, price_before=before_s * per_second, price_after=self.iteration_s * per_second)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "change": self.change, "kind": self.kind, "iteration_s": self.iteration_s, "lower_s": self.lower_s,
            "upper_s": self.upper_s, "delta_s": self.delta_s, "line": self.line, "line_delta_s": self.line_delta_s,
            "upper_bound": self.is_bound, "hardly_anything": self.is_hardly_anything, "rests_on": self.rests_on,
            "not_asked": self.not_asked, "assumptions": list(self.assumptions),
            "in_place": self.is_in_place, "origin": self.origin,
            "memory_delta_bytes": self.memory.delta_bytes, "memory_note": self.memory.reason,
            "price_before": self.price_before, "price_after": self.price_after,
        }  # fmt: skip


def hints(
    graph: StepGraph,
    *,
    memory_of: MemoryOf | None = None,
    pads: Sequence[PaddedWeights] = (),
    force: bool = False,
    seen: Callable[[SearchResult], None] = lambda found: None,
) -> tuple[Hint, ...]:
    """Return the hints for a step: what-ifs by descending gain, then padded weights."""
    known = None if memory_of is None else cache(memory_of)
    found = [_hint_of_search_result(one, graph, known) for one in search(graph, force=force, seen=seen)]
    padded = [_hint_of_answer(str(pad), what_if(graph, pad, force=force), origin="lint") for pad in pads]
    return (*found, *sorted(padded, key=lambda hint: hint.delta_s))


def _hint_of_search_result(found: SearchResult, graph: StepGraph, memory_of: MemoryOf | None) -> Hint:
    answer = found.answer
    if answer is None:
        return Hint(found.name, is_bound=found.is_bound, not_asked=found.reason)
    memory = found.memory_effect(graph, memory_of)
    return replace(_hint_of_answer(found.name, answer), is_bound=found.is_bound, memory=memory)


def _hint_of_answer(name: str, answer: Answer, origin: Literal["what-if", "lint"] = "what-if") -> Hint:
    line, changed_s = _most_changed_line_and_change(answer)
    return Hint(
        name, answer.iteration_us / 1e6, answer.lower_us / 1e6, answer.upper_us / 1e6,
        (answer.iteration_us - answer.baseline_us) / 1e6, line, changed_s, False, answer.is_hardly_anything,
        answer.rests_on, assumptions=answer.assumptions,
        is_in_place=bool(answer.in_place) and not answer.is_changed, origin=origin,
    )  # fmt: skip


def _most_changed_line_and_change(answer: Answer) -> tuple[str, float]:
    before, after = (_wall_us_by_line(*one) for one in zip(answer.graphs, answer.timelines, strict=True))
    steps = max(1, len(answer.graphs[0].iterations))
    deltas = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after} if name}
    line = max(deltas, key=lambda name: abs(deltas[name]), default="")
    return (line, deltas[line] / 1e6 / steps) if line and deltas[line] else ("", 0.0)


def _wall_us_by_line(graph: StepGraph, timeline: Timeline) -> dict[str, float]:
    wall_us, _ = wall_time_us(graph, timeline.start_us, timeline.end_us)
    parts: dict[str, list[float]] = {}
    for task in graph.tasks:
        parts.setdefault(source_line_of_task(task), []).append(wall_us.get(task.id, 0.0))
    return {line: math.fsum(own) for line, own in parts.items()}
