"""DeviceSpec: everything construction and the performance model know of a device.

One frozen tree of numbers in SI base units. The same class describes GPUs and CPUs; nothing above this
floor asks which device it is, only what its numbers are. Every numeric field declares its unit, range
and type in its metadata, and the loader and :meth:`DeviceSpec.with_overrides` check against exactly that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from roller.errors import SpecError, did_you_mean

#: Where a number comes from, in the order in which the loader prefers them.
SOURCES = ("measured", "datasheet", "assumed")

#: Memory layers of a kind of device, fastest first.
LAYER_NAMES: dict[str, tuple[str, ...]] = {
    "gpu": ("register", "shared", "l2", "global"),
    "cpu": ("register", "l1", "l2", "l3", "dram"),
}

#: Instruction classes every device must give a rate for.
OPERATION_CLASSES = ("fma", "add", "special", "convert", "issue", "load_store")
#: Further classes a device may give a rate for, alone or per dtype (``matrix.float16``).
OPTIONAL_CLASSES = ("matrix",)


@dataclass(frozen=True)
class Quantity:
    """Unit, range and type of one numeric field."""

    unit: str
    minimum: float
    maximum: float
    integer: bool = False
    kinds: tuple[str, ...] = ("gpu", "cpu")


def _number(
    unit: str,
    minimum: float,
    maximum: float,
    *,
    integer: bool = False,
    required: bool = True,
    kinds: tuple[str, ...] = ("gpu", "cpu"),
) -> Any:  # noqa: ANN401 - a dataclass field specifier is typed by its annotation
    """Declare a numeric field; ``kinds`` are the kinds of device that must give it."""
    metadata = {"quantity": Quantity(unit, minimum, maximum, integer, kinds if required else ())}
    if required and len(kinds) == 2:
        return field(metadata=metadata)
    return field(default=None, metadata=metadata)


@dataclass(frozen=True)
class Teu:
    """Tile execution unit: the threads or lanes that execute one instruction together.

    Parameters
    ----------
    name
        ``"warp"``, ``"wavefront"`` or ``"vector"``.
    lanes
        Threads of a warp; float32 lanes of a vector register.
    schedulers_per_unit
        TEUs a unit issues from per cycle; FMA ports on a CPU.
    """

    name: str
    lanes: int = _number("lanes", 1, 1024, integer=True)
    schedulers_per_unit: int = _number("schedulers", 1, 64, integer=True)


@dataclass(frozen=True)
class Compute:
    """Instruction throughput of one unit.

    Parameters
    ----------
    rates
        ``((class, operations per cycle per unit), ...)``; an operation is one thread's or lane's. Classes:
        ``fma``, ``add`` (also max, compare), ``special`` (exp, rsqrt, division), ``convert``, ``issue``
        (instructions issued), ``load_store`` (scratchpad or L1 accesses); ``class.dtype`` where a dtype differs.
    """

    rates: tuple[tuple[str, float], ...]

    @cached_property
    def ops_per_cycle_per_unit(self) -> dict[str, float]:
        """Rates by class name."""
        return dict(self.rates)


@dataclass(frozen=True)
class Execution:
    """Times that do not shrink with throughput.

    Parameters
    ----------
    step_latency_s
        Dependent latency of one reduction step of a register tile (scratchpad load to FMA).
    step_issue_s
        Issue time per TEU and reduction step beyond the FMAs (scratchpad loads, index arithmetic).
    barrier_s
        Time a block loses at a barrier; on a CPU the loop overhead of a panel step.
    launch_s
        Time to start a kernel, or to wake the worker threads of a CPU.
    overlap_blocks
        Co-resident blocks per unit from which one block's loads hide behind another's arithmetic.
    """

    step_latency_s: float = _number("s", 0, 1e-3)
    step_issue_s: float = _number("s", 0, 1e-3)
    barrier_s: float = _number("s", 0, 1e-2)
    launch_s: float = _number("s", 0, 1.0)
    overlap_blocks: float | None = _number("blocks", 1, 64, required=False)


@dataclass(frozen=True)
class Limits:
    """Hard limits, and beside them the usable budgets construction stays under.

    GPU fields are ``None`` on a CPU and the other way round.

    Parameters
    ----------
    registers_per_unit
        32-bit registers of one unit.
    registers_per_thread
        Hard limit of the instruction set.
    usable_registers_per_thread
        Budget of a register tile with its operands and addresses.
    register_allocation_unit
        Registers are allocated to a TEU in multiples of this many.
    threads_per_block, threads_per_unit, blocks_per_unit
        Launch and residency limits.
    shared_bytes_per_block
        Scratchpad one block may declare statically.
    vector_registers, usable_vector_registers
        CPU: architectural vector registers, and those left for accumulators.
    """

    registers_per_unit: int | None = _number("registers", 1024, 1 << 24, integer=True, kinds=("gpu",))
    registers_per_thread: int | None = _number("registers", 8, 1024, integer=True, kinds=("gpu",))
    usable_registers_per_thread: int | None = _number("registers", 8, 1024, integer=True, kinds=("gpu",))
    register_allocation_unit: int | None = _number("registers", 1, 4096, integer=True, kinds=("gpu",))
    threads_per_block: int | None = _number("threads", 1, 1 << 16, integer=True, kinds=("gpu",))
    threads_per_unit: int | None = _number("threads", 1, 1 << 16, integer=True, kinds=("gpu",))
    blocks_per_unit: int | None = _number("blocks", 1, 1 << 12, integer=True, kinds=("gpu",))
    shared_bytes_per_block: int | None = _number("bytes", 1024, 1 << 26, integer=True, kinds=("gpu",))
    vector_registers: int | None = _number("registers", 4, 1024, integer=True, kinds=("cpu",))
    usable_vector_registers: int | None = _number("registers", 2, 1024, integer=True, kinds=("cpu",))


@dataclass(frozen=True)
class MemoryLayer:
    """One level of the memory hierarchy.

    Parameters
    ----------
    name
        One of :data:`LAYER_NAMES`.
    scope
        Who owns one instance: ``"thread"``, ``"unit"`` or ``"device"``.
    tiled
        Whether an rTile lives here.
    capacity_bytes
        Bytes of one instance.
    bandwidth_bytes_per_s
        Device-wide total over all instances.
    transaction_bytes
        Smallest unit moved.
    usable_bytes
        Budget of the tiles of one block (GPU) or one task (CPU) in this layer.
    banks, bank_width_bytes
        Interleaved banks of a scratchpad.
    line_bytes
        Cache line.
    latency_s
        Load-to-use latency.
    bandwidth_per_teu_bytes_per_s
        What one resident TEU draws when it is alone on the device.
    saturation_exponent
        ``p`` of ``bandwidth(W) = ((W*b)**-p + peak**-p)**(-1/p)`` for W resident TEUs of ``b`` each.
    """

    name: str
    scope: Literal["thread", "unit", "device"]
    tiled: bool
    capacity_bytes: int = _number("bytes", 64, 1 << 50, integer=True)
    bandwidth_bytes_per_s: float = _number("bytes/s", 1e8, 1e17)
    transaction_bytes: int = _number("bytes", 1, 1 << 16, integer=True)
    usable_bytes: int | None = _number("bytes", 16, 1 << 50, integer=True, required=False)
    banks: int | None = _number("banks", 1, 1024, integer=True, required=False)
    bank_width_bytes: int | None = _number("bytes", 1, 1024, integer=True, required=False)
    line_bytes: int | None = _number("bytes", 8, 4096, integer=True, required=False)
    latency_s: float | None = _number("s", 1e-11, 1e-3, required=False)
    bandwidth_per_teu_bytes_per_s: float | None = _number("bytes/s", 1e6, 1e14, required=False)
    saturation_exponent: float | None = _number("", 0.1, 20, required=False)


@dataclass(frozen=True)
class DeviceSpec:
    """A device as numbers; build one with :func:`roller.hardware.load_spec`.

    Parameters
    ----------
    name
        Name of the YAML file, or of the detected profile.
    kind
        ``"gpu"`` or ``"cpu"``: which fields are present, never which device it is.
    description
        One line for people.
    target_items
        What code generation needs, as pairs; read it through :attr:`target`.
    units
        SMs, CUs or cores.
    clock_hz
        Clock the rates are quoted at.
    teu, compute, execution, limits, memory_layers
        See the classes; layers from fastest to slowest.
    source_items
        ``(path, source)`` of every number; read it through :attr:`sources`.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> spec = load_spec("v100")
    >>> spec.units, spec.teu.lanes, spec.layer("shared").banks
    (80, 32, 32)
    >>> f"{2 * spec.ops_per_s('fma') / 1e12:.2f} TFLOP/s"
    '14.13 TFLOP/s'
    """

    name: str
    kind: Literal["gpu", "cpu"]
    description: str
    target_items: tuple[tuple[str, str], ...]
    teu: Teu
    compute: Compute
    execution: Execution
    limits: Limits
    memory_layers: tuple[MemoryLayer, ...]
    units: int = _number("units", 1, 1 << 16, integer=True)
    clock_hz: float = _number("Hz", 1e7, 1e11)
    source_items: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __hash__(self) -> int:
        """Hash by content; cached, because specs key the caches of construction."""
        return hash(self.content_key)

    @cached_property
    def target(self) -> dict[str, str]:
        """What code generation needs: ``language`` and ``arch`` or ``mcpu``."""
        return dict(self.target_items)

    @cached_property
    def sources(self) -> dict[str, str]:
        """Where each number comes from: ``datasheet``, ``measured``, ``assumed``, ``detected`` or ``override``."""
        return dict(self.source_items)

    @cached_property
    def tiled_layers(self) -> tuple[MemoryLayer, ...]:
        """Layers in which an rTile lives, fastest first."""
        return tuple(x for x in self.memory_layers if x.tiled)

    @cached_property
    def _layers(self) -> dict[str, MemoryLayer]:
        return {x.name: x for x in self.memory_layers}

    def layer(self, name: str) -> MemoryLayer:
        """Return a memory layer by name.

        Raises
        ------
        SpecError
            Where the device has no such layer.
        """
        found = self._layers.get(name)
        if found is None:
            known = tuple(self._layers)
            raise SpecError(f"{self.name}: no memory layer '{name}'{did_you_mean(name, known)} It has {list(known)}.")
        return found

    def ops_per_s(self, operation: str, dtype: str = "float32") -> float:
        """Return the device-wide rate of an instruction class.

        Parameters
        ----------
        operation
            Class of :class:`Compute`.
        dtype
            A rate given for ``operation.dtype`` wins over the one of the class.

        Returns
        -------
        float
            Operations of single threads or lanes per second, over the whole device.

        Raises
        ------
        SpecError
            Where the device gives no rate for the class.
        """
        rates = self.compute.ops_per_cycle_per_unit
        rate = rates.get(f"{operation}.{dtype}", rates.get(operation))
        if rate is None:
            hint = did_you_mean(operation, rates)
            raise SpecError(f"{self.name}: no rate for '{operation}' on {dtype}{hint} It has {sorted(rates)}.")
        return rate * self.units * self.clock_hz

    def with_overrides(self, overrides: Mapping[str, float], source: str = "override") -> DeviceSpec:
        """Return a copy with some numbers replaced.

        Parameters
        ----------
        overrides
            Value by dotted path, e.g. ``{"memory_layers.global.bandwidth_bytes_per_s": 8.0e11}``.
        source
            What :attr:`sources` says of the new numbers.

        Raises
        ------
        SpecError
            Where a path does not exist, or a value is of the wrong type or out of range.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100").with_overrides({"units": 40}).units
        40
        """
        from roller.hardware.schema import override

        return override(self, overrides, source)

    def values(self) -> dict[str, float]:
        """Return every number that is present, by dotted path, in the order of the YAML."""
        out: dict[str, float] = {"units": self.units, "clock_hz": self.clock_hz}
        for section in ("teu", "execution", "limits"):
            out |= {f"{section}.{k}": v for k, v in numbers_of(getattr(self, section)).items()}
        out |= {f"compute.ops_per_cycle_per_unit.{k}": v for k, v in self.compute.rates}
        for layer in self.memory_layers:
            out |= {f"memory_layers.{layer.name}.{k}": v for k, v in numbers_of(layer).items()}
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with the source of every number."""
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "target": self.target,
            "teu": self.teu.name,
            "memory_layers": [{"name": x.name, "scope": x.scope, "tiled": x.tiled} for x in self.memory_layers],
            "values": {k: {"value": v, "source": self.sources.get(k, "override")} for k, v in self.values().items()},
            "content_key": self.content_key,
        }

    @cached_property
    def content_key(self) -> str:
        """SHA-256 over what the model and code generation see; sources and prose do not count."""
        body = {
            "name": self.name,
            "kind": self.kind,
            "target": self.target_items,
            "teu": self.teu.name,
            "layers": [(x.name, x.scope, x.tiled) for x in self.memory_layers],
            "values": {k: float(v) for k, v in self.values().items()},
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def quantities(section: type) -> dict[str, Quantity]:
    """Return the numeric fields of a section's class with their unit and range."""
    return {f.name: f.metadata["quantity"] for f in fields(section) if "quantity" in f.metadata}


def numbers_of(section: object) -> dict[str, float]:
    """Return the numbers a section holds, absent ones left out."""
    found = {name: getattr(section, name) for name in quantities(type(section))}
    return {k: v for k, v in found.items() if v is not None}


def defaults_to_none(section: type, name: str) -> bool:
    """Tell whether a field may be absent."""
    return any(f.name == name and f.default is not MISSING for f in fields(section))
