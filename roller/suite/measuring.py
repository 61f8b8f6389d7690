"""Measurement of the suite's training steps on this machine's processor: throughput, utilisation and memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from roller.errors import RollerError
from roller.hardware import THIS_MACHINE, DeviceSpec, load_spec
from roller.insight.cost.step_cost import price_step
from roller.insight.memory.cpu_heap import simulate_cpu_memory
from roller.insight.project_tracer import ProjectTracer
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.progress import Cancelled
from roller.insight.trace.trace import Trace
from roller.suite.entry import SuiteModel
from roller.suite.mean_interval import MeanInterval, mean_interval
from roller.suite.memory_by_benchmark_kind import memory_by_kind, peak_bytes_by_kind
from roller.suite.peak_utilisation import (
    OperatorUse,
    TimedWork,
    counted_operations,
    longest_operators_below_average,
    peak_share_by_pipe,
    peak_use_by_operator,
)  # fmt: skip
from roller.suite.sampling import Sample, SamplingRule
from roller.suite.worker import REPEATABLE
from roller_runtime.timing.clock import Clock, system_or_trusting_clock

#: Value of hardware counters, which are not read.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Measurement:
    """One model at one batch size on this machine; every figure except the device's peak is measured.

    Parameters
    ----------
    unit, units_per_sample
        Unit of throughput, and the number of units per sample.
    machine
        Processor, number of threads and PyTorch version.
    samples
        Times of iterations, one sample per process.
    trace
        Operators and allocations of a step on real tensors.
    operator_s
        Time of each operator in ``trace.steady()``, in seconds.
    process_peak_bytes
        Peak resident memory of the process over all iterations; 0 if unknown.
    spec
        Specification of this machine; the operations are compared with its peak rates.
    """

    model: str
    batch: int
    unit: str
    units_per_sample: float
    machine: str
    samples: tuple[Sample, ...]
    trace: Trace = field(repr=False)
    operator_s: tuple[float, ...] = field(repr=False)
    process_peak_bytes: int
    spec: DeviceSpec = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def is_stable(self) -> bool:
        """Whether the iterations of all processes were stable; if not, no time is reported."""
        return all(sample.is_stable for sample in self.samples)

    @property
    def interval(self) -> MeanInterval | None:
        """Mean time per iteration (s) over the processes, and its 95 % confidence interval; ``None`` if unstable."""
        means = [sample.interval for sample in self.samples if sample.interval is not None]
        if not self.is_stable or not means:
            return None
        return means[0] if len(means) == 1 else mean_interval([one.mean for one in means])

    def _per_second(self, iteration_s: float) -> float | None:
        return self.batch * self.units_per_sample / iteration_s if iteration_s > 0 else None

    @property
    def throughput(self) -> float | None:
        """Units per second; ``None`` if the iterations were not stable."""
        return None if self.interval is None else self._per_second(self.interval.mean)

    @property
    def throughput_between(self) -> tuple[float | None, float | None]:
        """Units per second at both ends of the 95 % confidence interval."""
        found = self.interval
        return (None, None) if found is None else (self._per_second(found.upper), self._per_second(found.lower))

    @property
    def compute_utilisation(self) -> float | None:
        """Share of an iteration spent in operators; ``None`` if the iterations were not stable."""
        return None if self.interval is None else min(1.0, sum(self.operator_s) / self.interval.mean)

    @cached_property
    def timed_work(self) -> tuple[TimedWork, ...]:
        """Operators of the step with their times and countable work."""
        priced = price_step(self.trace, self.spec).operators
        timed = zip(priced, self.operator_s, strict=True)
        return tuple(TimedWork(operator.name, took_s, counted_operations(price)) for (operator, price), took_s in timed)

    @property
    def peak_share_by_pipe(self) -> Mapping[str, float]:
        """Share of the peak by pipe; see :func:`~roller.suite.peak_utilisation.peak_share_by_pipe`."""
        return peak_share_by_pipe(self.timed_work) if self.is_stable else {}

    @property
    def kernels(self) -> tuple[OperatorUse, ...]:
        """The five longest operators whose share of the peak is below the step's share."""
        return longest_operators_below_average(peak_use_by_operator(self.timed_work)) if self.is_stable else ()

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by published kind at the peak of the tensors' memory; ``context`` is the rest of the process's peak."""
        memory = simulate_cpu_memory(self.trace, None)
        rest = max(0, self.process_peak_bytes - memory.total_bytes)
        return memory_by_kind(simulate_cpu_memory(self.trace, None, rest))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with the keys of a prediction and further keys."""
        interval, memory, shares = self.interval, self.memory, dict(self.peak_share_by_pipe)
        low, high = self.throughput_between
        busy = [sample.cpu_utilisation for sample in self.samples if sample.cpu_utilisation is not None]
        return {
            "model": self.model, "device": self.machine, "batch": self.batch, "kind": "measured", "fits": True,
            "unit": self.unit, "throughput_per_s": self.throughput, "throughput_lower_per_s": low,
            "throughput_upper_per_s": high, "iteration_s": None if interval is None else interval.mean,
            "lower_s": None if interval is None else interval.lower,
            "upper_s": None if interval is None else interval.upper, "is_stable": self.is_stable,
            "compute_utilisation": self.compute_utilisation,
            "peak_share": sum(shares.values()) if self.is_stable else None, "peak_share_by_pipe": shares,
            "kernels": [use._asdict() for use in self.kernels],
            "cpu_utilisation": fmean(busy) if busy and self.is_stable else None, "hardware_counters": UNKNOWN,
            "total_bytes": sum(memory.values()), "memory_bytes": dict(memory),
            "most_bytes": dict(peak_bytes_by_kind(self.trace, self.spec)),
            "warm_up": [sample.warm_up for sample in self.samples],
            "disturbed": [sample.disturbed for sample in self.samples],
            "samples_s": [list(sample.samples_s) for sample in self.samples],
            "notes": list(dict.fromkeys((*self.notes, *(s.note for s in self.samples if s.note)))),
        }  # fmt: skip


class SuiteProcess(ProjectTracer):
    """A process that trains one model until a stop rule is met, or in alternation with another process."""

    worker = "roller.suite.worker"

    def __init__(
        self, name: str, *, reduced: bool, seed: int, python: str, rule: SamplingRule | None = None,
        # folder of a TurnCoordinator, which replaces the rule
        turns: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, python=python)
        self._more = {
            "reduced": reduced, "rule": asdict(rule or SamplingRule()), "seed": seed,
            "turns": None if turns is None else str(turns),
        }  # fmt: skip

    def _request(self, options: TraceOptions) -> dict[str, Any]:
        return {**super()._request(options), **self._more}

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in REPEATABLE.items() if name not in os.environ}


def measure_model(
    model: SuiteModel,
    *,
    reduced: bool = True,
    batch: int | None = None,
    rule: SamplingRule | None = None,
    budget_s: float = 60.0,
    seed: int = 0,
    python: str = sys.executable,
) -> Measurement:
    """Train a model in a separate process on this machine's processor and measure its iterations.

    Parameters
    ----------
    reduced
        Whether to train the reduced size for this machine instead of the published size.
    batch
        Samples per step; by default, the model's own batch.
    rule
        Stop rule for the iterations; by default, the published rule.
    budget_s
        Time for iterations, in seconds, excluding the first iterations, whose operators are recorded.
    seed
        Seed for weights and inputs.
    python
        Python interpreter with roller and PyTorch.

    Raises
    ------
    ModelError
        If PyTorch is missing, or the process exited.
    """
    workload = model.workload(reduced=reduced)
    size = workload.batch if batch is None else batch
    with SuiteProcess(model.name, reduced=reduced, rule=rule, seed=seed, python=python) as process:
        trace, reply = process.measure(TraceOptions(size, None, None, False), float(budget_s))
    return measurement_from_reply(model, reduced, size, trace, reply)


def measurement_from_reply(
    model: SuiteModel, reduced: bool, batch: int, trace: Trace, reply: Mapping[str, Any]
) -> Measurement:
    """Return the measurement in a suite process's reply."""
    sample, workload = Sample.from_dict(reply["sample"]), model.workload(reduced=reduced)
    seconds = tuple(median for median, _, _ in reply["operators"])
    notes = tuple(note for note in reply["notes"] if note != sample.note)
    spec = load_spec(THIS_MACHINE)
    return Measurement(
        model.name, batch, model.unit, workload.units_per_sample, reply["machine"], (sample,), trace, seconds,
        reply["process_peak_bytes"], spec, notes,
    )  # fmt: skip


def measure(
    models: Sequence[SuiteModel],
    *,
    reduced: bool = True,
    rule: SamplingRule | None = None,
    budget_s: float = 600.0,
    repeat: int = 1,
    seed: int = 0,
    clock: Clock | None = None,
    one: Callable[..., Measurement] = measure_model,
    failed: Callable[[str, RollerError], None] | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """Yield a measurement of each model within one time budget.

    Each model, including its start-up, has an equal share of the remaining time.

    Parameters
    ----------
    models
        Models, as returned by :func:`roller.suite.registry.models_of`.
    reduced, rule, seed
        See :func:`measure_model`.
    budget_s
        Time for all models, in seconds.
    repeat
        Number of processes per model; several show the noise between processes.
    clock
        Clock; by default, this machine's clock.
    one
        Function that measures one model, with the parameters of :func:`measure_model`.
    failed
        Called with the name of a model that cannot be measured, and the error; by default, the error is raised.
    done
        Called with the name of each measured model.
    """
    chosen = clock or system_or_trusting_clock()
    end_s = chosen.now() + budget_s
    for left, model in zip(range(len(models), 0, -1), models, strict=True):
        share_s = max(1.0, (end_s - chosen.now()) / left / repeat)
        try:
            runs = [one(model, reduced=reduced, rule=rule, budget_s=share_s, seed=seed) for _ in range(repeat)]
        except Cancelled:
            raise
        except RollerError as error:
            if failed is None:
                raise
            failed(model.name, error)
            continue
        yield replace(runs[0], samples=tuple(sample for run in runs for sample in run.samples))
        done(model.name)
