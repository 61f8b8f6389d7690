"""``measure_step``: runs an entry file's step on this machine's processor, and times it and its operators."""

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
    """A step that ran on this machine, the result of :func:`measure_step`.

    Parameters
    ----------
    trace
        Operators, allocations and frees of the first calls of the step, on real tensors; in its options also
        ``threads`` and ``processor``.
    operator_s
        Seconds of each operator of ``trace.steady()``: the median over several later steps, of the call alone. Some
        microseconds of PyTorch's dispatch are in each.
    iteration_s, lower_s, upper_s
        Seconds of a step in a loop of plain steps, without anything that records: the median of blocks of three, and
        the interval that contains it with 95 % (the least and the greatest of fewer than six blocks). Where other work
        disturbed the blocks, ``lower_s`` is what is left without all that it took.
    is_stable
        Whether at least five blocks were undisturbed, and the interval is narrower than a tenth of the median. If not,
        ``notes`` say why, and the interval is all that is known.
    samples_s
        Seconds of a step in each block that counts.
    process_peak_bytes
        Most resident memory of the whole process during the loop, PyTorch and interpreter included; 0 if unknown.
    machine
        Processor, threads and version of PyTorch.
    notes
        Sentences for the report.
    operator_interval_s
        Interval of each operator that contains its median with 95 % (minimum and maximum of fewer than six times); both
        ends equal the median if the operator was timed once. Empty if unknown.
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
        """Seconds of a step outside of its operators: Python, autograd's engine, frees; below 0 by noise alone."""
        return self.iteration_s - math.fsum(self.operator_s)

    @property
    def samples_per_s(self) -> float:
        """Samples per second; 0 if the batch is unknown."""
        return self.trace.samples / self.iteration_s

    @property
    def samples_per_s_interval(self) -> tuple[float, float]:
        """Least and greatest samples per second, from the interval of the time."""
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
    """Run an entry file's step for real, in a process of its own, on this machine's processor.

    The step trains: nothing outside of that process changes, unless the file itself writes something. PyTorch chooses
    the number of threads. ``torch.compile`` is left out, as in a trace, with a note.

    Parameters
    ----------
    entry
        A Python file with ``model_provider``, ``input_provider`` and ``iteration_provider``, as
        :func:`roller.trace_entry` takes it.
    batch
        Samples of a step; by default that of ``input_provider``.
    amp
        ``"bf16"`` runs the step in ``torch.autocast("cpu")``; ``None`` or ``"fp32"`` as it is.
    checkpoint
        As in :func:`roller.trace`.
    python
        Interpreter of the project, which needs roller and PyTorch; by default this one.
    budget_s
        Seconds for timing, after the calls that are recorded; exceeded only for the least number of steps.

    Raises
    ------
    ModelError
        A provider is missing or raises, the step uses CUDA, or its process ended.
    Cancelled
        A listener (:func:`roller.listening`) has cancelled it; its stage is ``"measure"``.

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
        trace, told = project.measure(options, float(budget_s))
    timed = told["operators"]
    return MeasuredStep(
        trace, tuple(median for median, _, _ in timed), told["median_s"], told["lower_s"], told["upper_s"],
        told["is_stable"], tuple(told["samples_s"]), told["process_peak_bytes"], told["machine"], tuple(told["notes"]),
        operator_interval_s=tuple((lower, upper) for _, lower, upper in timed),
    )  # fmt: skip
