"""``measure_step``: runs an entry file's step on this machine's processor, and times the step and its operators."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from roller.errors import ModelError, shown
from roller.insight.project_tracer import ProjectTracer
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.trace import Trace


@dataclass(frozen=True)
class MeasuredStep:
    """A step that ran on this machine; returned by :func:`measure_step`.

    Parameters
    ----------
    trace
        Operators, allocations and frees of the first calls of the step, on real tensors; its options also include
        ``threads`` and ``processor``.
    operator_s
        Seconds that the call to each operator in ``trace.steady()`` takes: the median over several later steps. Each
        value includes a few microseconds of PyTorch's dispatch.
    iteration_s, lower_s, upper_s
        Seconds per step in a loop of plain steps, without recording: the median of blocks of three steps, and its 95 %
        confidence interval (the minimum and maximum for fewer than six blocks). If other programs disturbed the blocks,
        ``lower_s`` excludes all the time that they took.
    is_stable
        Whether at least five blocks were undisturbed and the interval is narrower than a tenth of the median. If not,
        ``notes`` states the reason, and only the interval is known.
    samples_s
        Seconds per step in each block from which ``iteration_s`` is computed.
    process_peak_bytes
        Peak resident memory of the whole process during the loop, including PyTorch and the interpreter; 0 if unknown.
    machine
        Processor, number of threads and PyTorch version.
    notes
        Sentences for the report.
    operator_interval_s
        95 % confidence interval of each operator's median (minimum and maximum for fewer than six times); both ends
        equal the median if the operator was timed once. Empty if unknown.
    """

    trace: Trace
    operator_s: tuple[float, ...]
    iteration_s: float
    lower_s: float
    upper_s: float
    is_stable: bool
    samples_s: tuple[float, ...]
    process_peak_bytes: int
    machine: str
    notes: tuple[str, ...] = ()
    operator_interval_s: tuple[tuple[float, float], ...] = ()

    @property
    def untracked_s(self) -> float:
        """Seconds of a step outside its operators: Python, autograd's engine, frees; negative only because of noise."""
        return self.iteration_s - math.fsum(self.operator_s)

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0 if the batch is unknown."""
        return self.trace.samples / self.iteration_s

    @property
    def samples_per_s_interval(self) -> tuple[float, float]:
        """Minimum and maximum samples per second, from the interval of the time."""
        return self.trace.samples / self.upper_s, self.trace.samples / self.lower_s if self.lower_s else math.inf


def measure_step(
    entry: str | Path,
    *,
    batch: int | None = None,
    amp: str | None = None,
    checkpoint: bool | str | Sequence[str] = False,
    python: str = sys.executable,
    budget_s: float = 60.0,
) -> MeasuredStep:
    """Run and time an entry file's step in a separate process on this machine's processor.

    The step trains, but nothing outside that process changes unless the file itself writes something. PyTorch chooses
    the number of threads. As in a trace, ``torch.compile`` is skipped, with a note.

    Parameters
    ----------
    entry
        A Python file with ``model_provider``, ``input_provider`` and ``iteration_provider``, as for
        :func:`roller.trace_entry`.
    batch
        Samples per step; by default, the default of ``input_provider``.
    amp
        ``"bf16"`` runs the step in ``torch.autocast("cpu")``; ``None`` or ``"fp32"`` runs it unchanged.
    checkpoint
        See :func:`roller.trace`.
    python
        Interpreter of the project, which needs roller and PyTorch; by default, the current one.
    budget_s
        Seconds for timing, after the recorded calls; exceeded only to reach the minimum number of steps.

    Raises
    ------
    ModelError
        If a provider is missing or raises an error, the step uses CUDA, or its process ended.
    Cancelled
        If a listener (:func:`roller.listening`) cancelled the measurement, which reports the stage ``"measure"``.

    Examples
    --------
    .. code-block:: python

        found = measure_step("train.py", batch=8)
        print(found.iteration_s, found.lower_s, found.upper_s, found.is_stable, *found.notes)
    """
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not 0 < budget_s < math.inf:
        raise ModelError(f"measure: budget_s: expected seconds above 0, got {shown(budget_s)}. Pass e.g. 60.")
    options = TraceOptions(batch, None, amp, checkpoint)
    with ProjectTracer(entry, python=python) as project:
        trace, details = project.measure(options, float(budget_s))
    timed = details["operators"]
    return MeasuredStep(
        trace, tuple(median for median, _, _ in timed), details["median_s"], details["lower_s"], details["upper_s"],
        details["is_stable"], tuple(details["samples_s"]), details["process_peak_bytes"], details["machine"],
        tuple(details["notes"]),
        operator_interval_s=tuple((lower, upper) for _, lower, upper in timed),
    )  # fmt: skip
