"""Predicted studies of the suite's models: batches up to the memory limit, several devices, precision and fusion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from roller.errors import ModelError, RollerError, shown
from roller.hardware import DeviceSpec, load_spec
from roller.insight.traced_step import TracedStep
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.whatifs import DDP, FusePointwise
from roller.suite.entry import SuiteModel
from roller.suite.prediction import Prediction
from roller.suite.registry import models_of
from roller.suite.tracing import trace_workload

#: One-directional link bandwidths in the published study, in bytes per second: PCIe as measured there, Ethernet,
#: InfiniBand.
PCIE, SLOW, FAST = 6e9, 1e9 / 8, 100e9 / 8
#: Numbers of devices and machines, and bandwidth (bytes/s) of the slowest link in a ring through all devices.
CLUSTERS: Mapping[str, tuple[int, int, float]] = {
    "1 device": (1, 1, PCIE), "2 devices, PCIe": (2, 1, PCIE), "4 devices, PCIe": (4, 1, PCIE),
    "2 machines, 1 Gb/s": (2, 2, SLOW), "2 machines, 100 Gb/s": (2, 2, FAST),
}  # fmt: skip
#: Relative gain of the last doubling of the batch below which throughput is saturated.
SATURATED = 0.10


@dataclass(frozen=True)
class ClusterRow:
    """A model that trains on several devices with the same batch size on each.

    Parameters
    ----------
    model, device, batch
        Names of the model and device, and samples per step on each device.
    cluster
        Key of :data:`CLUSTERS`.
    throughput
        Units per second over all devices; ``None`` if the throughput cannot be predicted.
    compute_utilisation
        Share of the step with an active kernel, per device.
    """

    model: str
    device: str
    batch: int
    cluster: str
    devices: int
    machines: int
    throughput: float | None
    compute_utilisation: float | None = None
    total_bytes: int | None = None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**vars(self), "kind": "predicted"}


@dataclass(frozen=True)
class ChangeRow:
    """A model with a different precision or with fused kernels.

    Parameters
    ----------
    speedup
        Step time before the change divided by the time after it; ``None`` if it cannot be predicted.
    """

    model: str
    device: str
    batch: int
    change: str
    speedup: float | None
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {**vars(self), "kind": "predicted"}


@dataclass(frozen=True)
class Studies:
    """Rows of all studies.

    Parameters
    ----------
    sweeps
        Predictions for power-of-two batches; for each model and device, the last batch is the first that does not fit,
        unless a limit ends the sweep before.
    """

    sweeps: tuple[Mapping[str, Any], ...]
    clusters: tuple[ClusterRow, ...]
    changes: tuple[ChangeRow, ...]
    models: Mapping[str, SuiteModel]
    devices: Mapping[str, DeviceSpec]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Studies:
        """Create the studies from JSON data.

        Raises
        ------
        RollerError
            If the data are incomplete, or name an unknown model or device.
        """
        try:
            sweeps = tuple(data["sweeps"])
            clusters = tuple(ClusterRow(**_drop_kind_key(row)) for row in data["clusters"])
            changes = tuple(ChangeRow(**_drop_kind_key(row)) for row in data["changes"])
            models = models_of(dict.fromkeys(row["model"] for row in sweeps))
            devices = {name: load_spec(name) for name in dict.fromkeys(row["device"] for row in sweeps)}
        except (KeyError, TypeError) as error:
            raise RollerError(
                f"studies: expected what `roller suite observe --out` writes, got {shown(str(error))}. Write it again."
            ) from error
        return cls(sweeps, clusters, changes, {model.name: model for model in models}, devices)

    def sweep_of(self, model: str, device: str) -> list[Mapping[str, Any]]:
        """Return the fitting batches of a model on a device, in ascending order."""
        rows = (row for row in self.sweeps if (row["model"], row["device"]) == (model, device) and row["fits"])
        return sorted(rows, key=lambda row: row["batch"])

    def is_whole(self, model: str, device: str) -> bool:
        """Return whether a sweep ends at a batch that does not fit, rather than at a requested limit."""
        return any((row["model"], row["device"], row["fits"]) == (model, device, False) for row in self.sweeps)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "sweeps": [dict(row) for row in self.sweeps], "clusters": [row.to_dict() for row in self.clusters],
            "changes": [row.to_dict() for row in self.changes],
        }  # fmt: skip


def _drop_kind_key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "kind"}


def saturation_batch(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the batch beyond which each doubling gains less than a tenth; ``None`` if the last one gains more.

    Examples
    --------
    >>> saturation_batch([{"batch": 1, "throughput_per_s": 10.0}, {"batch": 2, "throughput_per_s": 18.0},
    ...             {"batch": 4, "throughput_per_s": 19.0}])
    2
    """
    found = None
    for one, twice in reversed(list(pairwise(rows))):
        if twice["throughput_per_s"] >= (1 + SATURATED) * one["throughput_per_s"]:
            break
        found = int(one["batch"])
    return found


def run_studies(
    models: Sequence[SuiteModel],
    devices: Sequence[DeviceSpec],
    *,
    reduced: bool = False,
    most: int | None = None,
    done: Callable[[str], None] = lambda name: None,
) -> Studies:
    """Run all studies.

    Parameters
    ----------
    models, devices
        Models and devices of the batch sweeps; clusters and changes use only the first device.
    reduced
        Whether to use the reduced sizes for this machine.
    most
        Largest batch in a sweep; by default, the largest that fits.
    done
        Called with the names of each model and device.
    """
    sweeps, clusters, changes = list[Mapping[str, Any]](), list[ClusterRow](), list[ChangeRow]()
    for model in models:
        workload = model.workload(reduced=reduced)
        step = trace_workload(model.name, workload, device=devices[0])
        for spec in devices:
            made = batch_sweep(model, workload.units_per_sample, step, spec, most)
            sweeps += [one.to_dict() for one in made]
            done(f"{model.name}, {spec.name}")
        clusters += cluster_study(model, workload.units_per_sample, step, devices[0])
        changes += precision_and_fusion_study(model, step, devices[0])
    return Studies(
        tuple(sweeps), tuple(clusters), tuple(changes), {m.name: m for m in models}, {s.name: s for s in devices}
    )


def batch_sweep(
    model: SuiteModel, units: float, step: TracedStep, spec: DeviceSpec, most: int | None = None
) -> Iterator[Prediction]:
    """Yield predictions for power-of-two batches up to the first that does not fit."""
    # a model published with a single batch keeps it
    batch = model.batches[0] if len(model.batches) == 1 else 1
    while most is None or batch <= most:
        try:
            forecast = step.forecast(spec, batch=batch)
        except ModelError:  # too small to train, such as one image for a batch norm after global pooling
            if batch >= model.batches[0]:
                raise
            batch *= 2
            continue
        found = Prediction(model.name, spec.name, batch, model.unit, units, forecast)
        yield found
        if not found.fits or len(model.batches) == 1:
            return
        batch *= 2


def cluster_study(model: SuiteModel, units: float, step: TracedStep, spec: DeviceSpec) -> Iterator[ClusterRow]:
    """Yield a row for each of :data:`CLUSTERS` at the step's own batch size, under ``DistributedDataParallel``."""
    batch = int(step.options["batch"])
    graph, one = step.graph(spec), step.forecast(spec)
    several = None
    for name, (devices, machines, bandwidth) in CLUSTERS.items():
        head = (model.name, spec.name, batch, name, devices, machines)
        if devices == 1:
            active, total = min(1.0, one.device_s / one.iteration_s), one.memory.total_bytes
            found = batch * units / one.iteration_s if one.memory.fits else None
            yield ClusterRow(*head, found, active, total, "" if one.memory.fits else "it does not fit")
            continue
        try:
            answer = what_if(graph, DDP(devices=devices, bandwidth=bandwidth))
            several = several or step.forecast(spec, devices=2)  # buckets have one size for all numbers of devices
        except RollerError as error:
            yield ClusterRow(*head, None, reason=str(error))
            continue
        # Kernels are active for the same time as on one device, since reductions run on the network's lane.
        active = min(1.0, one.device_s / (answer.iteration_us / 1e6))
        speed = devices * batch * units / (answer.iteration_us / 1e6) if several.memory.fits else None
        yield ClusterRow(
            *head, speed, active, several.memory.total_bytes, "" if several.memory.fits else "it does not fit"
        )


def precision_and_fusion_study(model: SuiteModel, step: TracedStep, spec: DeviceSpec) -> Iterator[ChangeRow]:
    """Yield the effects of half precision and fused kernels at the step's own batch size."""
    head = (model.name, spec.name, int(step.options["batch"]))
    before_s = step.forecast(spec).iteration_s
    for amp in ("fp16", "bf16"):
        try:
            after = step.forecast(spec, amp=amp)
        except RollerError as error:
            yield ChangeRow(*head, amp, None, str(error))
        else:
            yield ChangeRow(*head, amp, before_s / after.iteration_s)
    try:
        answer = what_if(step.graph(spec), FusePointwise())
    except RollerError as error:
        yield ChangeRow(*head, "fused kernels", None, str(error))
    else:
        yield ChangeRow(*head, "fused kernels", answer.speedup)
