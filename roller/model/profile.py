"""Where a model's time goes, step by step: predicted and measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roller.errors import LaunchError, counted
from roller.model.binding import Bound, BoundCopy, BoundRun, BoundTogether
from roller.model.steps import Call, Value

if TYPE_CHECKING:
    from roller.model.session import Session


@dataclass(frozen=True)
class StepTime:
    """One step of a profile.

    Parameters
    ----------
    label
        What it computes.
    kind
        ``"kernel"``, ``"copy"``, ``"function"``, ``"foreign"`` or ``"together"``: the time of all its lanes, which
        follow it.
    kernel
        Key of the kernel; empty for other kinds.
    nodes
        Nodes of the graph it stands for.
    predicted_s
        Predicted seconds; ``None`` where nothing was predicted.
    measured_s
        Median measured seconds.
    share
        Part of the measured time of all steps; of a lane's steps, of their ``together``.
    bottleneck
        What the model says bounds it.
    lane
        Which lane of the ``together`` before it; ``None`` outside.
    """

    label: str
    kind: str
    kernel: str
    nodes: tuple[str, ...]
    predicted_s: float | None
    measured_s: float
    share: float
    bottleneck: str = ""
    lane: int | None = None


@dataclass(frozen=True)
class Profile:
    """A whole model's times.

    Parameters
    ----------
    name
        Of the model.
    steps
        In the order they run.
    measured_s
        Median seconds of whole calls, as a caller sees them.
    predicted_s
        Sum of the predictions; of lanes that run at the same time the longest.
    repeats
        Calls that were timed.
    """

    name: str
    steps: tuple[StepTime, ...]
    measured_s: float
    predicted_s: float
    repeats: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        """Name the steps that take most, one per line."""
        top = sorted((s for s in self.steps if s.lane is None), key=lambda s: -s.share)
        lines = [f"{self.name}: measured {self.measured_s * 1e3:.4g} ms, predicted {self.predicted_s * 1e3:.4g} ms"]
        for s in top[:20]:
            predicted = "-" if s.predicted_s is None else f"{s.predicted_s * 1e6:.4g} us"
            lines.append(f"{s.share:6.1%} {s.measured_s * 1e6:9.4g} us, predicted {predicted}: {s.label}")
        return "\n".join(lines)


def profile_session(session: Session, feeds: Mapping[str, Any] | None, repeats: int, warmups: int = 2) -> Profile:
    """Time every step of a session.

    Parameters
    ----------
    session
        With the native runner.
    feeds
        Arrays by name; random ones when ``None``.
    repeats, warmups
        Calls that are timed, and calls before them that are not.

    Raises
    ------
    LaunchError
        Where ``repeats`` is not positive, or a feed does not fit.
    """
    if repeats < 1:
        raise LaunchError(f"{session.name}: argument 'repeats': expected at least 1, got {repeats}.")
    program = session.plan.program
    given = random_feeds([program.values[n] for n in program.inputs]) if feeds is None else feeds
    totals, taken = [], list[dict[int, float]]()
    for n in range(warmups + repeats):
        seconds: dict[int, float] = {}
        start = time.perf_counter()
        session.run_timed(given, seconds)
        if n >= warmups:
            totals.append(time.perf_counter() - start)
            taken.append(seconds)
    medians = {key: statistics.median(s[key] for s in taken) for key in taken[0]}
    steps = tuple(_steps(session.steps, medians, dict(session.plan.predicted_s)))
    predicted = _predicted(session.steps, dict(session.plan.predicted_s))
    return Profile(session.name, steps, statistics.median(totals), predicted, repeats)


def random_feeds(values: Sequence[Value], seed: int = 0) -> dict[str, np.ndarray]:
    """Return arrays a model can be timed with: floats from -1 to 1, zeros of everything else.

    (Integers are mostly indices, of which 0 is always one.)
    """
    from roller.backends.dtypes import numpy_dtype

    rng = np.random.default_rng(seed)
    found = {}
    for value in values:
        dtype = numpy_dtype(value.dtype)
        floating = value.dtype.startswith(("float", "bfloat"))
        found[value.name] = rng.uniform(-1, 1, value.shape).astype(dtype) if floating else np.zeros(value.shape, dtype)
    return found


def _steps(
    steps: Sequence[Bound], medians: Mapping[int, float], predicted: Mapping[str, float], lane: int | None = None
) -> Iterator[StepTime]:
    """Yield the rows of steps; those of lanes follow their ``together``."""
    total = sum(medians.get(id(b), 0.0) for b in steps) or 1.0
    for bound in steps:
        measured = medians.get(id(bound), 0.0)
        label, kind, kernel, nodes, bottleneck = _described(bound)
        yield StepTime(
            label, kind, kernel, nodes, _predicted_of(bound, predicted), measured, measured / total, bottleneck, lane
        )
        if isinstance(bound, BoundTogether):
            for number, inner in enumerate(bound.lanes):
                yield from _steps(inner, medians, predicted, number)


def _described(bound: Bound) -> tuple[str, str, str, tuple[str, ...], str]:
    if isinstance(bound, BoundRun):
        step = bound.step
        return step.label, "kernel", step.kernel, step.nodes, bound.kernel.code.bottleneck
    if isinstance(bound, BoundCopy):
        return f"copy {bound.step.source} to {bound.step.target}", "copy", "", (), "memory"
    if isinstance(bound, BoundTogether):
        return f"{len(bound.lanes)} lanes together", "together", "", (), ""
    if isinstance(bound.step, Call):
        return bound.step.label or bound.step.function, "function", "", (), ""
    return f"{bound.step.runtime} ({counted(len(bound.step.nodes), 'node')})", "foreign", "", bound.step.nodes, ""


def _predicted_of(bound: Bound, predicted: Mapping[str, float]) -> float | None:
    if isinstance(bound, BoundRun):
        return predicted.get(bound.step.kernel, bound.kernel.code.seconds or None)
    if isinstance(bound, BoundTogether):
        return max((_predicted(lane, predicted) for lane in bound.lanes), default=0.0)
    return None


def _predicted(steps: Sequence[Bound], predicted: Mapping[str, float]) -> float:
    return sum(_predicted_of(b, predicted) or 0.0 for b in steps)
