"""Predicted training of the suite's models on devices: throughput, utilisation and memory by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roller.hardware import DeviceSpec
from roller.insight.forecast import Forecast
from roller.suite.entry import SuiteModel
from roller.suite.memory_by_benchmark_kind import memory_by_kind, peak_bytes_by_kind
from roller.suite.peak_utilisation import (
    OperatorUse,
    TimedWork,
    counted_operations,
    longest_operators_below_average,
    peak_share_by_pipe,
    peak_use_by_operator,
)  # fmt: skip
from roller.suite.tracing import trace_workload


@dataclass(frozen=True)
class Prediction:
    """One model at one batch size on one device; every figure is predicted.

    Parameters
    ----------
    unit, units_per_sample
        Unit of throughput, and the number of units per sample.
    """

    model: str
    device: str
    batch: int
    unit: str
    units_per_sample: float
    forecast: Forecast = field(repr=False)

    @property
    def fits(self) -> bool:
        """Whether the step fits into the device's memory."""
        return self.forecast.memory.fits

    def _per_second(self, iteration_s: float) -> float | None:
        return self.batch * self.units_per_sample / iteration_s if self.fits and iteration_s > 0 else None

    @property
    def throughput(self) -> float | None:
        """Units per second; ``None`` if the step does not fit."""
        return self._per_second(self.forecast.iteration_s)

    @property
    def throughput_between(self) -> tuple[float | None, float | None]:
        """Units per second if the step is slower or faster by the expected error."""
        return self._per_second(self.forecast.upper_s), self._per_second(self.forecast.lower_s)

    @property
    def compute_utilisation(self) -> float:
        """Share of the step with an active kernel; kernels on the single stream do not overlap."""
        return min(1.0, self.forecast.device_s / self.forecast.iteration_s) if self.forecast.iteration_s else 0.0

    @cached_property
    def timed_work(self) -> tuple[TimedWork, ...]:
        """Operators of the step with their times and countable work."""
        return tuple(
            TimedWork(operator.name, price.seconds, counted_operations(price))
            for operator, price in self.forecast.operators
            if price.seconds > 0
        )

    @property
    def peak_share_by_pipe(self) -> Mapping[str, float]:
        """Share of the peak by pipe; see :func:`~roller.suite.peak_utilisation.peak_share_by_pipe`."""
        return peak_share_by_pipe(self.timed_work)

    @property
    def kernels(self) -> tuple[OperatorUse, ...]:
        """The five longest operators whose share of the peak is below the step's share."""
        return longest_operators_below_average(peak_use_by_operator(self.timed_work))

    @property
    def peak_share(self) -> float:
        """Share of the peak over all pipes; if it is one half, better kernels can at most double the speed."""
        return sum(self.peak_share_by_pipe.values())

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by published kind at the peak; see :func:`~roller.suite.memory_by_benchmark_kind.memory_by_kind`."""
        return memory_by_kind(self.forecast.memory)

    @property
    def most_memory(self) -> Mapping[str, int]:
        """Peak number of bytes of each kind; the peaks may be at different times."""
        return peak_bytes_by_kind(self.forecast.step.trace, self.forecast.step.spec)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        low, high = self.throughput_between
        found, memory = self.forecast, self.forecast.memory
        return {
            "model": self.model, "device": self.device, "batch": self.batch, "kind": "predicted", "fits": self.fits,
            "unit": self.unit, "throughput_per_s": self.throughput, "throughput_lower_per_s": low,
            "throughput_upper_per_s": high, "iteration_s": found.iteration_s, "lower_s": found.lower_s,
            "upper_s": found.upper_s, "compute_utilisation": self.compute_utilisation, "peak_share": self.peak_share,
            "peak_share_by_pipe": dict(self.peak_share_by_pipe), "kernels": [use._asdict() for use in self.kernels],
            "cpu_utilisation": None, "bound": found.bound,
            "unmapped_share": found.unmapped_share, "total_bytes": memory.total_bytes if self.fits else None,
            "memory_bytes": dict(self.memory) if self.fits else None,
            "most_bytes": dict(self.most_memory), "notes": list(found.notes),
        }  # fmt: skip


def predict(
    models: Sequence[SuiteModel],
    devices: Sequence[DeviceSpec],
    batches: Sequence[int | None] = (None,),
    *,
    reduced: bool = False,
    done: Callable[[str], None] = lambda name: None,
) -> Iterator[Prediction]:
    """Yield a prediction for each model, batch and device, in that order; devices share traces if possible.

    Parameters
    ----------
    models
        Models, as returned by :func:`roller.suite.registry.models_of`.
    batches
        Numbers of samples per step; ``None`` for the model's own batch.
    reduced
        Whether to use reduced sizes, which this machine trains in seconds, instead of the published sizes.
    done
        Called with the name of each prediction.

    Raises
    ------
    ModelError
        If PyTorch is missing, or a device is neither a CUDA device nor a CPU.
    """
    for model in models:
        workload = model.workload(reduced=reduced)
        step = trace_workload(model.name, workload, device=devices[0])
        for batch in batches:
            size = workload.batch if batch is None else batch
            for spec in devices:
                found = step.forecast(spec, batch=size)
                yield Prediction(model.name, spec.name, size, model.unit, workload.units_per_sample, found)
                done(f"{model.name}, {spec.name}, batch {size}")
