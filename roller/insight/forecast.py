"""Predicts how long a traced step takes on a device, and whether it fits in memory, by simulating its graph.

The host issues operators one after another, and the device runs their kernels in that order. On a CPU, both share one
lane. Everything is predicted at the sustained clock; no device is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.hardware.is_spec_calibrated import is_calibrated
from roller.insight.cost.host_copies import host_copy_notes
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.operator_price import Price
from roller.insight.cost.ring_all_reduce import Ring
from roller.insight.cost.step_cost import HOST_OP_S, PricedStep, price_step
from roller.insight.memory.largest_batch import fit_uncertainty_note, memory_on_device
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.memory.simulate import Memory
from roller.insight.step.breakdown import BreakdownRow, Key, breakdown, exposed_network_us, thread_work_us
from roller.insight.step.from_trace import build_priced_step_graph
from roller.insight.step.graph import Provenance, StepGraph, Task
from roller.insight.step.simulate import Timeline, simulate
from roller.insight.trace.gradient_buckets import buckets, trace_with_bucket_storages
from roller.insight.trace.trace import Operator, Trace
from roller.insight.whatif.add_data_parallel_reductions import add_data_parallelism
from roller.perf.matrix_unit_notes import notes_on_matrix_unit
from roller_runtime.core.display import html_table, seconds_text
from roller_runtime.core.gc_pause import gc_paused

#: Share of a step's time spent waiting for links above which the step is bound by links.
NOTABLE = 0.1


@dataclass(frozen=True)
class Forecast:
    """A predicted step.

    Parameters
    ----------
    device, policy
        Name of the specification, and the policy that chooses the kernels.
    batch
        Samples per step on each device; 0 if the trace does not give them.
    iteration_s
        Time of one steady step.
    lower_s, upper_s
        ``iteration_s`` minus and plus the expected error, assuming that the errors of all operators have the same sign.
    device_s, host_s
        Total time of the operators on the device, and the time that the host takes to issue all operators.
    bound_by_launches
        Whether issuing operators takes more than half of the step, and the device works or waits for links for less
        than 90 % of it.
    memory
        Memory peaks, the tensors that hold memory, and out-of-memory failures.
    unmapped_share
        Share of the device time that is taken by operators priced only by their bytes.
    operators
        All operators of the step with their prices, in order.
    step, host_op_s
        Inputs of ``graph`` and ``timeline``.
    notes
        The trace's warnings, and notes on copies between host and device, missing features of the matrix unit, and
        whether it is uncertain that the step fits.
    devices
        Number of devices that train together.
    links_s, exposed_s
        Time per step during which the devices' links are busy, and the part of it for which the devices wait.
    amp, checkpoint
        Precision of the trace, and the modules that are recomputed in the backward pass.
    samples
        Samples per step on each device: the batch times the number of gradient accumulation steps.
    """

    device: str
    policy: str
    batch: int
    iteration_s: float
    lower_s: float
    upper_s: float
    device_s: float
    host_s: float
    bound_by_launches: bool
    memory: Memory
    unmapped_share: float
    operators: Sequence[tuple[Operator, Price]] = field(repr=False)
    step: PricedStep = field(repr=False)
    host_op_s: float = field(repr=False)
    notes: tuple[str, ...] = ()
    devices: int = 1
    links_s: float = 0.0
    exposed_s: float = 0.0
    amp: str | None = None
    checkpoint: tuple[str, ...] = ()
    samples: float = 0.0

    def _repr_html_(self) -> str:
        """Return an HTML table of the operators by name for a notebook, headed by the step time and its interval."""
        rows = (
            (x.name, x.kernels, seconds_text(x.compute_us / 1e6), f"{x.share:.1%}", x.resource)
            for x in self.by_operator()
        )
        spread = f"{seconds_text(self.lower_s)} to {seconds_text(self.upper_s)}"
        title = f"{self.kind} on {self.device}: {seconds_text(self.iteration_s)} a step ({spread})"
        return html_table(title, ("operator", "kernels", self.kind, "share", "bound by"), rows)

    @cached_property
    def _simulated_graph(self) -> tuple[StepGraph, Timeline]:
        # Built on demand: a sweep keeps hundreds of forecasts, and few graphs of them are used.
        graph, _ = _graph_on_one_of_devices(self.step, self.host_op_s, self.devices)
        return graph, simulate(graph)

    @property
    def graph(self) -> StepGraph:
        """The step as a graph."""
        return self._simulated_graph[0]

    @property
    def timeline(self) -> Timeline:
        """Simulated start and end times of the tasks in ``graph``."""
        return self._simulated_graph[1]

    @property
    def kind(self) -> Literal["predicted", "calibrated"]:
        """``"calibrated"`` if ``roller probe`` measured rates on the device itself, otherwise ``"predicted"``."""
        return "calibrated" if is_calibrated(self.step.spec) else "predicted"

    @property
    def bound(self) -> str:
        """What bounds a step: ``"launches"``, ``"links"`` if devices wait for over a tenth of it, or ``"device"``."""
        if self.bound_by_launches:
            return "launches"
        return "links" if self.exposed_s > NOTABLE * self.iteration_s else "device"

    @property
    def throughput(self) -> float:
        """Samples per second over all devices; 0 if the batch is unknown or the step does not fit."""
        fits = self.memory.fits and self.iteration_s
        return self.devices * (self.samples or self.batch) / self.iteration_s if fits else 0.0

    def breakdown(self, key: Key | Callable[[Task], str]) -> tuple[BreakdownRow, ...]:
        """Return the cost of the step by module, line, operator, phase or kernel.

        See :func:`roller.insight.step.breakdown.breakdown`.
        """
        return breakdown(self.graph, self.timeline, key)

    def by_operator(self) -> list[BreakdownRow]:
        """Return one row per operator name, in descending order of compute time."""
        return self._rows_by_compute_time("operator")

    def by_module(self, depth: int | None = None) -> list[BreakdownRow]:
        """Return one row per module, longest compute time first; module paths are cut after ``depth`` names."""
        return self._rows_by_compute_time(
            lambda task: ".".join(task.context.module.split(".")[:depth]) or "(top level)"
        )

    def by_phase(self) -> list[BreakdownRow]:
        """Return one row per phase (forward, backward, optimizer), in descending order of compute time."""
        return self._rows_by_compute_time("phase")

    def _rows_by_compute_time(self, key: Key | Callable[[Task], str]) -> list[BreakdownRow]:
        return sorted((row for row in self.breakdown(key) if row.kernels), key=lambda row: -row.compute_us)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; ``kind`` is the origin of every time."""
        memory = self.memory
        oom = None if memory.oom is None else {"wanted_bytes": memory.oom.wanted_bytes, "said": str(memory.oom)}
        return {
            "device": self.device,
            "policy": self.policy,
            "batch": self.batch,
            "samples": self.samples or self.batch,
            "devices": self.devices,
            "amp": self.amp or "fp32",
            "checkpoint": list(self.checkpoint),
            "links_s": self.links_s,
            "exposed_s": self.exposed_s,
            "kind": self.kind,
            "iteration_s": self.iteration_s,
            "lower_s": self.lower_s,
            "upper_s": self.upper_s,
            "device_s": self.device_s,
            "host_s": self.host_s,
            "bound_by_launches": self.bound_by_launches,
            "throughput_per_s": self.throughput,
            "unmapped_share": self.unmapped_share,
            "memory": {
                **asdict(memory.peak),
                "total_bytes": memory.total_bytes,
                "total_error_bytes": memory.total_error_bytes,
                "fits": memory.fits,
                "oom": oom,
                "by_kind": dict(memory.by_kind()),
            },
            "operators": [_breakdown_row_data(x) for x in self.by_operator()],
            "modules": [_breakdown_row_data(x) for x in self.by_module()],
            "notes": list(self.notes),
        }


def _breakdown_row_data(x: BreakdownRow) -> dict[str, Any]:
    seconds = x.compute_us / 1e6
    return {"name": x.name, "calls": x.kernels, "seconds": seconds, "share": x.share, "resource": x.resource}


@gc_paused()
def forecast(
    trace: Trace,
    device: str | DeviceSpec,
    *,
    policy: str = "library",
    host_op_s: float = HOST_OP_S,
    settings: AllocatorSettings | None = None,
    kernels: KernelPricer | None = None,
    devices: int = 1,
    tf32: bool | None = None,
) -> Forecast:
    """Predict the last, steady step of a trace on a device.

    Parameters
    ----------
    trace
        A trace from :func:`roller.trace`.
    device
        The specification of a GPU or a processor, or its name.
    policy
        ``"library"``: kernels of PyTorch and its libraries, and generated kernels where the step itself calls
        ``torch.compile``. ``"compiled"``: the forward and backward passes as compiled by ``torch.compile``.
        ``"roller"``: the fastest constructed programs.
    host_op_s
        Host time per operator that launches kernels.
    settings
        Settings of the caching allocator.
    kernels
        Earlier prices for the same device (``spec.sustained``) and policy; by default, prices from the cache.
    devices
        Number of devices in one machine that train together with ``DistributedDataParallel``, each on the trace's
        batch.
    tf32
        Whether float32 convolutions and products may be computed in TF32, if the device supports it; ``None`` for the
        settings of PyTorch's switches in the trace.

    Raises
    ------
    RollerError
        If the device or policy is unknown, the device is of an unsupported kind, several processors are requested, or
        the host time is invalid.

    Examples
    --------
    >>> from roller.insight.trace.trace import TensorRecord
    >>> x, w, y = (TensorRecord((2048, 2048), (2048, 1), "float32", n) for n in range(3))
    >>> step = Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": 2048})
    >>> found = forecast(step, "a100")
    >>> found.bound_by_launches, found.by_operator()[0].resource, found.memory.fits
    (False, 'compute', True)
    """
    from roller.compile_arguments import spec_and_local_device

    if not host_op_s >= 0:
        raise RollerError(f"host_op_s: expected seconds, got {host_op_s!r}. Leave it out for {HOST_OP_S}.")
    spec = spec_and_local_device(device)[0]
    last, *others = (
        _forecast_step(t, spec, policy, host_op_s, settings, kernels, devices, tf32) for t in trace.unlike()
    )
    return _mean_forecast(last, others) if others else last


def _forecast_step(
    trace: Trace, spec: DeviceSpec, policy: str, host_op_s: float, settings: AllocatorSettings | None,
    kernels: KernelPricer | None, devices: int, tf32: bool | None,
) -> Forecast:  # fmt: skip
    """Return the forecast for the last step of a trace."""
    step = price_step(trace, spec, policy, kernels=kernels, tf32=tf32)
    graph, trace = _graph_on_one_of_devices(step, host_op_s, devices)
    run = simulate(graph)
    end_s, host_s = run.makespan_us / 1e6, thread_work_us(graph) / 1e6
    device_s = sum(p.seconds for _, p in step.operators)
    unmapped = sum(p.seconds for _, p in step.operators if p.provenance == "bytes")
    memory = memory_on_device(trace, spec, settings)
    near = fit_uncertainty_note(trace, spec, memory, settings)
    lacks = (
        notes_on_matrix_unit(step.kernels.priced_expressions, spec, ours=policy == "roller")
        if spec.traits.blocks
        else ()
    )
    far = host_copy_notes(trace.steady(), end_s) if spec.traits.discrete else ()
    notes = (*trace.warnings, *far, *lacks, *filter(None, [near]))
    exposed_s = exposed_network_us(graph, run) / 1e6
    below, above = (sum(getattr(p, n) for _, p in step.operators) - device_s for n in ("lower", "upper"))
    return Forecast(
        spec.name, policy, int(trace.options.get("batch") or 0), end_s, max(end_s + below, host_s), end_s + above,
        device_s, host_s, host_s > 0.5 * end_s and device_s + exposed_s < 0.9 * end_s, memory,
        unmapped / device_s if device_s else 0.0, step.operators, step, host_op_s, notes, devices,
        sum(t.duration_us for t in graph.tasks if t.kind == "collective") / 1e6, exposed_s,
        trace.options.get("amp"), tuple(trace.options.get("checkpoint") or ()), trace.samples,
    )  # fmt: skip


def _mean_forecast(last: Forecast, others: Sequence[Forecast]) -> Forecast:
    """Return one forecast for differing steps: mean times, the longest step's operators, the fullest step's memory."""
    steps = (last, *others)
    names = ("iteration_s", "lower_s", "upper_s", "device_s", "host_s", "links_s", "exposed_s", "unmapped_share")
    means = {name: sum(getattr(step, name) for step in steps) / len(steps) for name in names}
    longest = max(steps, key=lambda step: step.device_s)
    fullest = max(steps, key=lambda step: (not step.memory.fits, step.memory.peak.reserved_bytes))
    return replace(longest, memory=fullest.memory, notes=fullest.notes, **means)


def _graph_on_one_of_devices(step: PricedStep, host_op_s: float, devices: int) -> tuple[StepGraph, Trace]:
    """Return a step's graph on one of ``devices`` devices, and the trace including its gradient buckets."""
    graph = build_priced_step_graph(step, host_op_s)
    return (graph, step.trace) if devices == 1 else _graph_on_several_devices(step, graph, devices)


def _graph_on_several_devices(step: PricedStep, graph: StepGraph, devices: int) -> tuple[StepGraph, Trace]:
    """Return a step's graph on one of several devices that train together, and the trace including its buckets."""
    if not step.spec.traits.discrete:
        raise RollerError(
            f"forecast: device: expected one processor, got {devices} of '{step.spec.name}', whose links are not "
            f"described. Ask for one."
        )
    ring, held = Ring.of(step.spec, devices), buckets(step.trace)
    of_kernels, named = len(graph.gradients), sum(len(b.names) for b in held)
    if of_kernels < named:
        raise RollerError(
            f"devices: expected gradients that kernels of the step compute, got {named - of_kernels} of {named} that "
            f"none does, so nothing tells when devices can reduce them. Ask for one device."
        )

    def copy_us(size_bytes: int, gradients: int) -> tuple[float, Provenance]:
        return 1e6 * step.kernels.price_stream(size_bytes, size_bytes, gradients).seconds, "predicted"

    return add_data_parallelism(graph, ring, copy_us) if held else graph, trace_with_bucket_storages(step.trace, held)
