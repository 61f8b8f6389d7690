"""Where a model's time goes, step by step: predicted and measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roller.display import html_table, one_line, seconds_text
from roller.errors import LaunchError, counted, shown
from roller.model.binding import Bound, BoundTogether
from roller.model.calls import ModelCalls
from roller.model.packs import pack_name, packs_of, runs_of_pack
from roller.model.steps import Call, Copy, Foreign, Run, Step, Together, Value
from roller.validation import whole_number

if TYPE_CHECKING:
    from roller.model.gpu_runner import GpuSession
    from roller.model.session import Session

#: Predicted seconds (``None``: nothing was predicted) and bottleneck by kernel key.
Said: TypeAlias = "Mapping[str, tuple[float | None, str]]"


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

    def __repr__(self) -> str:
        """Kind, times and label on one line."""
        times = f"measured {seconds_text(self.measured_s)}, predicted {seconds_text(self.predicted_s)}"
        return one_line("StepTime", f"{self.kind}: {times}", self.label)


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

    def __repr__(self) -> str:
        """Name the times of whole calls on one line."""
        times = f"measured {seconds_text(self.measured_s)}, predicted {seconds_text(self.predicted_s)} a call"
        return one_line("Profile", f"{self.name}: {times}", counted(len(self.steps), "step"))

    def _repr_html_(self) -> str:
        """Every step in the order they run, for a notebook."""
        rows = (
            (f"{s.share:.1%}", seconds_text(s.measured_s), seconds_text(s.predicted_s), s.bottleneck, s.label)
            for s in self.steps
        )
        return html_table(repr(self)[1:-1], ("share", "measured", "predicted", "bound by", "step"), rows)

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
    given = _given(session, feeds, repeats)
    totals, taken = [], list[dict[int, float]]()
    for n in range(warmups + repeats):
        seconds: dict[int, float] = {}
        start = time.perf_counter()
        session.run_timed(given, seconds)
        if n >= warmups:
            totals.append(time.perf_counter() - start)
            taken.append(seconds)
    medians = {key: statistics.median(s[key] for s in taken) for key in taken[0]}
    said = {key: (k.code.seconds or None, k.code.bottleneck) for key, k in session.kernels.items()}
    measured = dict(_measured(session.plan.program.steps, session.steps, medians))
    return _profile(session, measured, totals, said)


def profile_gpu(session: GpuSession, feeds: Mapping[str, Any] | None, repeats: int, warmups: int = 2) -> Profile:
    """Time every step of a model on a GPU, launched one by one, and whole calls with their graphs and copies.

    Parameters and exceptions are those of :func:`profile_session`.
    """
    given = _given(session, feeds, repeats)
    totals = []
    for n in range(warmups + repeats):
        start = time.perf_counter()
        session.run(given)
        if n >= warmups:
            totals.append(time.perf_counter() - start)
    said = {key: (a.estimate.get("seconds"), str(a.estimate.get("bottleneck", "")))
            for key, a in session.artifacts.items()}  # fmt: skip
    return _profile(session, session.time_steps(given, repeats), totals, said)


def _given(session: ModelCalls, feeds: Mapping[str, Any] | None, repeats: int) -> Mapping[str, Any]:
    whole_number(repeats, f"{session.name}: argument 'repeats'", 1, expected="at least 1", error=LaunchError)
    if not (feeds is None or isinstance(feeds, Mapping)):
        raise LaunchError(f"{session.name}: argument 'feeds': expected arrays by name, got {shown(feeds)}.")
    program = session.plan.program
    return random_feeds([program.values[n] for n in program.inputs]) if feeds is None else feeds


def _measured(
    steps: Sequence[Step], bound: Sequence[Bound], medians: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Yield the seconds of every step by its ``id``, from those of the bound steps."""
    for step, own in zip(steps, bound, strict=True):
        yield id(step), medians.get(id(own), 0.0)
        if isinstance(step, Together) and isinstance(own, BoundTogether):
            for lane, bounds in zip(step.lanes, own.lanes, strict=True):
                yield from _measured(lane, bounds, medians)


def _profile(session: ModelCalls, measured: Mapping[int, float], totals: Sequence[float], said: Said) -> Profile:
    plan = session.plan
    estimates = {key: (plan.predicted_s.get(key, seconds), bound) for key, (seconds, bound) in said.items()}
    estimates |= {pack_name(p): (plan.predicted_s.get(pack_name(p)), "") for p in packs_of(plan.program.steps)}
    predicted = _predicted(plan.program.steps, estimates)
    steps = tuple(_steps(plan.program.steps, measured, estimates))
    return Profile(session.name, steps, statistics.median(totals), predicted, len(totals))


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
    steps: Sequence[Step], measured: Mapping[int, float], said: Said, lane: int | None = None
) -> Iterator[StepTime]:
    """Yield the rows of steps; those of lanes follow their ``together``."""
    total = sum(measured.get(id(s), 0.0) for s in steps) or 1.0
    for step in steps:
        seconds = measured.get(id(step), 0.0)
        label, kind, kernel, nodes = _described(step)
        bottleneck = "memory" if isinstance(step, Copy) else said.get(kernel, (None, ""))[1]
        yield StepTime(
            label, kind, kernel, nodes, _predicted_of(step, said), seconds, seconds / total, bottleneck, lane
        )
        if isinstance(step, Together) and not step.packed:  # what shares a launch has no time of its own
            for number, inner in enumerate(step.lanes):
                yield from _steps(inner, measured, said, number)


def _described(step: Step) -> tuple[str, str, str, tuple[str, ...]]:
    if isinstance(step, Run):
        return step.label, "kernel", step.kernel, step.nodes
    if isinstance(step, Copy):
        return f"copy {step.source} to {step.target}", "copy", "", ()
    if isinstance(step, Together) and step.packed:
        runs = runs_of_pack(step)
        return f"{counted(len(runs), 'kernel')} in one launch", "pack", "", tuple(n for r in runs for n in r.nodes)
    if isinstance(step, Together):
        return f"{len(step.lanes)} lanes together", "together", "", ()
    if isinstance(step, Foreign):
        return f"{step.runtime} ({counted(len(step.nodes), 'node')})", "foreign", "", step.nodes
    assert isinstance(step, Call), "plans have no views and no joins"
    return step.label or step.function, "function", "", ()


def _predicted_of(step: Step, said: Said) -> float | None:
    if isinstance(step, Run):
        return said.get(step.kernel, (None, ""))[0]
    if isinstance(step, Together) and step.packed:
        return said.get(pack_name(step), (None, ""))[0]
    if isinstance(step, Together):
        return max((_predicted(lane, said) for lane in step.lanes), default=0.0)
    return None


def _predicted(steps: Sequence[Step], said: Said) -> float:
    return sum(_predicted_of(s, said) or 0.0 for s in steps)
