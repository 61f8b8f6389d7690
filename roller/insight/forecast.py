"""How long a traced step takes on a device that is not here, and whether it fits: two lanes over priced operators.

The host issues operators one after the other; the device runs their kernels in that order. An operator starts when both
have come to it, so a step takes as long as the lane that ends last, and where that is the host's, the step is bound by
launches. On a processor both are one: it issues an operator, and computes it before it issues the next. Everything here
is predicted, at the clock that lasts, and no device is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from roller.core.cache_location import cache_folder
from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.lanes import Exchange, Lanes, run_in_series, run_lanes
from roller.insight.memory.batches import memory_on
from roller.insight.memory.replay import Memory
from roller.insight.memory.settings import AllocatorSettings
from roller.insight.parallel import Ring, buckets, with_buckets
from roller.insight.price.kernels import Kernels
from roller.insight.price.operators import Price, Pricer, check_policy
from roller.insight.price.processor import ProcessorPricer
from roller.insight.price.progress import priced
from roller.insight.records import Operator, Trace

#: Host time of one operator of an eager framework that launches. Assumed: it is that of a processor of 3 GHz;
#: ``host_op_s`` says what was measured.
HOST_OP_S = 6e-6

#: Share of a step from which on waiting for links is told.
NOTABLE = 0.1


@dataclass(frozen=True)
class Share:
    """Part of a step's device time: what one operator or one module costs.

    Parameters
    ----------
    name
        Of the operator (``"aten.addmm.default"``) or the module's path.
    calls
        Operators in it that launch a kernel.
    seconds
        Device time.
    share
        Of the device time of the step.
    resource
        What bounds most of it.
    """

    name: str
    calls: int
    seconds: float
    share: float
    resource: str


@dataclass(frozen=True)
class Forecast:
    """A predicted step.

    Parameters
    ----------
    device, policy
        Name of the specification; whose kernels run.
    batch
        Samples of a step on each device; 0 where the trace does not say.
    iteration_s
        Time of one steady step.
    lower_s, upper_s
        One expected error below and above, if the errors of all operators agree.
    device_s, host_s
        What the device works, and what the host takes to issue everything.
    bound_by_launches
        Whether the host's lane is the critical one; on a processor, whether issuing takes the most of it.
    memory
        Peaks, holders, out of memory.
    unmapped_share
        Share of the device time that is priced by bytes alone, since nothing says what the operator computes.
    operators
        Every operator of the step with its price, in order.
    notes
        Sentences of the trace: values that were read, declared defaults.
    devices
        How many train together.
    links_s, exposed_s
        What their links work in a step, and what of it the devices wait for.
    amp, checkpoint
        Precision, and the modules that run again in backward, as the trace says.
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
    notes: tuple[str, ...] = ()
    devices: int = 1
    links_s: float = 0.0
    exposed_s: float = 0.0
    amp: str | None = None
    checkpoint: tuple[str, ...] = ()

    @property
    def bound(self) -> str:
        """What a step waits for most: ``"launches"``, ``"links"`` where they hold it up notably, or ``"device"``."""
        if self.bound_by_launches:
            return "launches"
        return "links" if self.exposed_s > NOTABLE * self.iteration_s else "device"

    @property
    def throughput(self) -> float:
        """Samples per second of all devices; 0 where the batch is unknown, or the step does not fit."""
        return self.devices * self.batch / self.iteration_s if self.memory.fits and self.iteration_s else 0.0

    def by_operator(self) -> list[Share]:
        """Return the operators by name, the most expensive first."""
        return self._shares([o.name for o, _ in self.operators])

    def by_module(self, depth: int | None = None) -> list[Share]:
        """Return the modules, the most expensive first; paths are cut behind ``depth`` names."""
        paths = [o.module.split(".") if o.module else ["(none)"] for o, _ in self.operators]
        return self._shares([".".join(p[:depth]) for p in paths])

    def by_phase(self) -> list[Share]:
        """Return forward, backward and optimizer, the most expensive first."""
        return self._shares([o.phase for o, _ in self.operators])

    def _shares(self, names: Sequence[str]) -> list[Share]:
        seconds: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        bound: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for name, (_, price) in zip(names, self.operators, strict=True):
            if price.kernels:
                seconds[name] += price.seconds
                calls[name] += 1
                bound[name][price.resource] += price.seconds
        whole = self.device_s or 1.0
        rows = [Share(n, calls[n], s, s / whole, max(bound[n], key=lambda r: bound[n][r])) for n, s in seconds.items()]
        return sorted(rows, key=lambda x: -x.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; every time is predicted."""
        memory = self.memory
        oom = None if memory.oom is None else {"wanted_bytes": memory.oom.wanted_bytes, "said": str(memory.oom)}
        return {
            "device": self.device,
            "policy": self.policy,
            "batch": self.batch,
            "devices": self.devices,
            "amp": self.amp or "fp32",
            "checkpoint": list(self.checkpoint),
            "links_s": self.links_s,
            "exposed_s": self.exposed_s,
            "kind": "predicted",
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
            "operators": [asdict(x) for x in self.by_operator()],
            "modules": [asdict(x) for x in self.by_module()],
            "notes": list(self.notes),
        }


def forecast(
    trace: Trace,
    device: str | DeviceSpec,
    *,
    policy: str = "library",
    host_op_s: float = HOST_OP_S,
    settings: AllocatorSettings | None = None,
    kernels: Kernels | None = None,
    devices: int = 1,
) -> Forecast:
    """Predict the last, steady step of a trace on a device.

    Parameters
    ----------
    trace
        As :func:`roller.trace` gives it.
    device
        The specification of a GPU or a processor, or its name.
    policy
        ``"library"``: kernels of PyTorch and the libraries below it. ``"roller"``: the fastest constructed program.
    host_op_s
        Host time of one operator that launches.
    settings
        Of the caching allocator.
    kernels
        Prices kept from before, for the same device (``spec.sustained``) and policy; by default those of the cache.
    devices
        How many of them in one machine train together, each on a batch of the trace, as ``DistributedDataParallel``
        does it.

    Raises
    ------
    RollerError
        No such device or policy, a device of another kind, several processors, or a host time that is none.

    Examples
    --------
    >>> from roller.insight.records import TensorRecord
    >>> x, w, y = (TensorRecord((2048, 2048), (2048, 1), "float32", n) for n in range(3))
    >>> step = Trace((Operator(0, "aten.mm.default", "forward", (x, w), (y,)),), (), {}, (0, 1), {"batch": 2048})
    >>> found = forecast(step, "a100")
    >>> found.bound_by_launches, found.by_operator()[0].resource, found.memory.fits
    (False, 'compute', True)
    """
    from roller.arguments import target_of

    if not host_op_s >= 0:
        raise RollerError(f"host_op_s: expected seconds, got {host_op_s!r}. Leave it out for {HOST_OP_S}.")
    spec = target_of(device)[0]
    if not spec.traits.discrete:
        rows, lanes = _on_processor(trace, spec, policy, host_op_s, kernels, devices)
    elif spec.traits.blocks:
        rows, lanes, trace = _on_gpu(trace, spec, policy, host_op_s, kernels, devices)
    else:
        raise RollerError(
            f"forecast: device: expected a GPU or a CPU, got '{spec.name}'. What a framework's libraries and its "
            f"allocator take elsewhere is not described yet; name one of those."
        )
    end_s, host_s = lanes.end_s, lanes.host_s
    device_s = sum(p.seconds for _, p in rows)
    unmapped = sum(p.seconds for _, p in rows if p.provenance == "bytes")
    memory = memory_on(trace, spec, settings)
    below, above = (sum(getattr(p, n) for _, p in rows) - device_s for n in ("lower", "upper"))
    return Forecast(
        spec.name, policy, int(trace.options.get("batch") or 0), end_s, max(end_s + below, host_s), end_s + above,
        device_s, host_s, host_s > 0.5 * end_s and device_s < 0.9 * end_s, memory,
        unmapped / device_s if device_s else 0.0, tuple(rows), tuple(trace.warnings), devices, lanes.links_s,
        lanes.exposed_s, trace.options.get("amp"), tuple(trace.options.get("checkpoint") or ()),
    )  # fmt: skip


def _on_gpu(
    trace: Trace, spec: DeviceSpec, policy: str, host_op_s: float, kernels: Kernels | None, devices: int
) -> tuple[list[tuple[Operator, Price]], Lanes, Trace]:
    """Return the priced operators of the last step, when its lanes end, and the trace with what devices exchange."""
    pricer = Pricer(spec.sustained, policy, kernels or Kernels(spec.sustained, policy, cache_folder() / "prices"))
    found = list(zip(trace.steady(), priced(pricer, trace.steady()), strict=True))
    exchange = None
    if devices != 1:
        exchange = _exchange(trace, Ring.of(spec, devices), pricer)
        trace = with_buckets(trace, exchange.buckets)
    return found, run_lanes([p for _, p in found], host_op_s, exchange), trace


def _on_processor(
    trace: Trace, spec: DeviceSpec, policy: str, host_op_s: float, kernels: Kernels | None, devices: int
) -> tuple[list[tuple[Operator, Price]], Lanes]:
    """Return the priced operators of the last step, and when the processor that issues them ends.

    Prices of libraries belong to a step, whose tensors are in a cache or not: no disk keeps them.
    """
    check_policy(policy)
    if devices != 1:
        raise RollerError(
            f"forecast: device: expected one processor, got {devices} of '{spec.name}', whose links are not described. "
            f"Ask for one."
        )
    if policy == "library":
        prices = ProcessorPricer(spec.sustained).steady(trace)
    else:
        pricer = Pricer(spec.sustained, policy, kernels or Kernels(spec.sustained, policy, cache_folder() / "prices"))
        prices = priced(pricer, trace.steady())
    return list(zip(trace.steady(), prices, strict=True)), run_in_series(prices, host_op_s)


def _exchange(trace: Trace, ring: Ring, pricer: Pricer) -> Exchange:
    """Return what so many devices reduce: each bucket is written once, with the division, and once read back."""
    found = buckets(trace)
    copies = [pricer.kernels.stream(b.size_bytes, b.size_bytes, len(b.names)).seconds for b in found]
    last, step = max((b.ready for b in found), default=-1), trace.steady()
    update = next((n for n, o in enumerate(step) if n > last and o.phase != "backward"), len(step))
    return Exchange(found, ring, copies, update)
