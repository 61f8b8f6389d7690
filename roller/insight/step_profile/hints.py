"""Hints of a profile: what-ifs that apply to its step, with their price, each at the line that it changes most."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roller.insight.step.breakdown import line_of
from roller.insight.step.graph import Provenance, StepGraph
from roller.insight.step.simulate import Timeline
from roller.insight.step.wall_time import wall_time_us
from roller.insight.whatif.predict import Answer
from roller.insight.whatif.search import Found, search


@dataclass(frozen=True)
class Hint:
    """What a change of the step would bring. All times are predicted.

    Parameters
    ----------
    change
        The what-ifs, as ``roller whatif --do`` takes them.
    iteration_s, lower_s, upper_s
        Time of the changed step, and one expected error below and above.
    delta_s
        Time of the changed step minus that of the unchanged one; negative if the change helps.
    line, line_delta_s
        ``"file:line"`` whose time changes most, and the change of its time; ``""`` where tasks know no line.
    is_bound
        Whether the change cannot be built, and only bounds the gain.
    is_hardly_anything
        Whether the gain is smaller than the usual differences between steps.
    rests_on
        Provenance of the least certain new or changed time.
    not_asked
        Why there is no prediction; ``""`` if there is one. All other fields are then empty.
    assumptions
        Assumptions of the change, a sentence each.
    """

    change: str
    iteration_s: float = 0.0
    lower_s: float = 0.0
    upper_s: float = 0.0
    delta_s: float = 0.0
    line: str = ""
    line_delta_s: float = 0.0
    is_bound: bool = False
    is_hardly_anything: bool = False
    rests_on: Provenance | str = ""
    not_asked: str = ""
    assumptions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "change": self.change, "kind": "predicted", "iteration_s": self.iteration_s, "lower_s": self.lower_s,
            "upper_s": self.upper_s, "delta_s": self.delta_s, "line": self.line, "line_delta_s": self.line_delta_s,
            "upper_bound": self.is_bound, "hardly_anything": self.is_hardly_anything, "rests_on": self.rests_on,
            "not_asked": self.not_asked, "assumptions": list(self.assumptions),
        }  # fmt: skip


def hints(
    graph: StepGraph, *, force: bool = False, seen: Callable[[Found], None] = lambda found: None
) -> tuple[Hint, ...]:
    """Return the hints of a step, in the order of ``roller whatif --all``: the largest gain first.

    Parameters
    ----------
    graph
        Of a forecast or a recording.
    force, seen
        As for :func:`roller.insight.whatif.search.search`.

    Raises
    ------
    RollerError
        The graph is that of a recording that is not explained.
    """
    return tuple(_hint(found) for found in search(graph, force=force, seen=seen))


def _hint(found: Found) -> Hint:
    answer = found.answer
    if answer is None:
        return Hint(found.name, is_bound=found.is_bound, not_asked=found.reason)
    line, changed_s = _most_changed_line(answer)
    return Hint(
        found.name, answer.iteration_us / 1e6, answer.lower_us / 1e6, answer.upper_us / 1e6,
        (answer.iteration_us - answer.baseline_us) / 1e6, line, changed_s, found.is_bound, answer.is_hardly_anything,
        answer.rests_on, assumptions=answer.assumptions,
    )  # fmt: skip


def _most_changed_line(answer: Answer) -> tuple[str, float]:
    """Return the innermost line whose part of the step's time changes most, and the change in seconds of a step."""
    before, after = (_time_by_line(*one) for one in zip(answer.graphs, answer.timelines, strict=True))
    steps = max(1, len(answer.graphs[0].iterations))
    deltas = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after} if name}
    line = max(deltas, key=lambda name: abs(deltas[name]), default="")
    return (line, deltas[line] / 1e6 / steps) if line and deltas[line] else ("", 0.0)


def _time_by_line(graph: StepGraph, timeline: Timeline) -> dict[str, float]:
    wall_us, _ = wall_time_us(graph, timeline.start_us, timeline.end_us)
    parts: dict[str, list[float]] = {}
    for task in graph.tasks:
        parts.setdefault(line_of(task), []).append(wall_us.get(task.id, 0.0))
    return {line: math.fsum(own) for line, own in parts.items()}
