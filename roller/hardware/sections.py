"""Sections of a device specification: frozen classes whose field metadata specify units and ranges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from roller.hardware.checks import Quantity
from roller.targets import KINDS
from roller_runtime.core.display import non_default_repr

#: Instruction classes with a required rate.
OPERATION_CLASSES = ("fma", "add", "special", "convert", "issue", "load_store")
#: Instruction classes with an optional rate, alone or per dtype (``matrix.float16``).
OPTIONAL_CLASSES = ("matrix", "group_matrix", "dot", "integer", "convert_to")
#: Dtypes of rates; ``tfloat32`` is float32 that a matrix unit rounds to 11 significant bits before it multiplies.
DTYPES = ("float16", "bfloat16", "tfloat32", "float32", "float64", "int8", "int16", "int32", "float8_e4m3fn",
          "float8_e5m2")  # fmt: skip
#: Range of an instruction rate.
RATE = Quantity("operations/cycle/unit", 1e-3, 1e7)


def numeric_field(
    unit: str,
    minimum: float,
    maximum: float,
    *,
    integer: bool = False,
    required: bool = True,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> Any:
    """Declare a numeric field; ``kinds`` lists the device kinds that must provide it."""
    metadata = {"quantity": Quantity(unit, minimum, maximum, integer, kinds if required else ())}
    if required and len(kinds) == len(KINDS):
        return field(metadata=metadata)
    return field(default=None, metadata=metadata)


class Section:
    """Base class of the sections, whose ``repr`` shows only non-default fields."""

    def __repr__(self) -> str:
        return non_default_repr(self)


@dataclass(frozen=True, repr=False)
class Teu(Section):
    """Tile execution unit: threads or lanes that execute one instruction together."""

    name: str  #: ``"warp"``, ``"wavefront"`` or ``"vector"``
    lanes: int = numeric_field(
        "lanes", 1, 1024, integer=True
    )  #: Threads of a warp, or float32 lanes of a vector register
    #: Number of TEUs from which a unit issues per cycle; on a CPU, the number of FMA ports.
    schedulers_per_unit: int = numeric_field("schedulers", 1, 64, integer=True)
    #: CPU: number of float32 lanes per pass; wider vectors take several passes (Zen 1: 4 of 8 lanes, Zen 4: 8 of 16).
    datapath_lanes: int | None = numeric_field("lanes", 1, 1024, integer=True, required=False)


@dataclass(frozen=True, repr=False)
class Compute(Section):
    """Instruction throughput of one unit."""

    #: ``((class, operations per cycle per unit), ...)``, counted per thread or lane. Classes: ``fma``, ``add`` (also
    #: max, compare), ``special`` (exp, rsqrt, division), ``convert``, ``issue`` (all instructions), ``load_store``
    #: (scratchpad or L1 accesses); ``class.dtype`` for a dtype that differs. ``convert.float16`` widens float16,
    #: ``convert_to.float16`` narrows to it (default: the same rate), ``convert.float64`` is any 64-bit conversion.
    rates: tuple[tuple[str, float], ...]

    @cached_property
    def ops_per_cycle_per_unit(self) -> dict[str, float]:
        """Rates by class name."""
        return dict(self.rates)


@dataclass(frozen=True, repr=False)
class Execution(Section):
    """Latencies and overheads, and the energy that arithmetic takes."""

    #: Dependent latency of one reduction step of a register tile (scratchpad load to FMA).
    step_latency_s: float = numeric_field("s", 0, 1e-3)
    #: Issue time per TEU and reduction step in addition to the FMAs (scratchpad loads, index arithmetic).
    step_issue_s: float = numeric_field("s", 0, 1e-3)
    #: Time that a block loses at a barrier; on a CPU, loop overhead per panel step.
    barrier_s: float = numeric_field("s", 0, 1e-2)
    launch_s: float = numeric_field("s", 0, 1.0)  #: Kernel launch time; on a CPU, the time of a call on one thread
    #: CPU: time to start a parallel loop on waiting workers and to join them.
    fork_s: float | None = numeric_field("s", 0, 1e-2, kinds=("cpu",))
    #: Number of groups of co-resident blocks that run out of step, so that loads of one overlap arithmetic of another.
    overlap_blocks: float | None = numeric_field("blocks", 1, 64, required=False)
    #: Widest asynchronous copy from global memory to the scratchpad; ``None``: not supported.
    async_copy_bytes: int | None = numeric_field("bytes", 4, 1024, integer=True, required=False)
    #: CPU: time per element of a copy of single elements, of a copy of rows, and of a strided store.
    element_gather_s: float | None = numeric_field("s", 0, 1e-6, kinds=("cpu",))
    element_copy_s: float | None = numeric_field("s", 0, 1e-6, kinds=("cpu",))
    element_scatter_s: float | None = numeric_field("s", 0, 1e-6, kinds=("cpu",))
    #: CPU: number of cache misses that a core overlaps with arithmetic.
    misses_in_flight: float | None = numeric_field("misses", 1, 1024, kinds=("cpu",))
    #: CPU: number of extra load slots of a vector load that crosses a cache line; 1 if unknown.
    split_load_slots: float | None = numeric_field("slots", 0, 64, required=False)
    #: CPU: number of lines after which the prefetcher runs ahead of a stream; shorter runs partly wait.
    prefetched_lines: float | None = numeric_field("lines", 1, 1 << 12, required=False)
    #: CPU: time of a first-touch page fault; no kernel here causes one.
    fault_s: float | None = numeric_field("s", 0, 1e-3, required=False)
    #: Energy of the board per unit and cycle with busy pipes, with a busy matrix unit, and in a kernel's other cycles;
    #: with ``power_w`` they limit the clock. Defaults: no limit; as ``busy_cycle_j``; 0.
    busy_cycle_j: float | None = numeric_field("J", 1e-12, 1e-3, required=False)
    matrix_cycle_j: float | None = numeric_field("J", 1e-12, 1e-3, required=False)
    idle_cycle_j: float | None = numeric_field("J", 1e-13, 1e-3, required=False)
    #: Power of the board at full clock without a kernel; ``None``: included in the energies of cycles.
    standing_w: float | None = numeric_field("W", 0, 1e5, required=False)


@dataclass(frozen=True, repr=False)
class Limits(Section):
    """Hard limits, and smaller usable budgets for construction; GPU fields are ``None`` on a CPU and vice versa."""

    #: Number of 32-bit registers in one unit.
    registers_per_unit: int | None = numeric_field("registers", 1024, 1 << 24, integer=True, kinds=("gpu",))
    #: Maximum number of registers that the instruction set allows.
    registers_per_thread: int | None = numeric_field("registers", 8, 1024, integer=True, kinds=("gpu",))
    #: Number of registers available to a register tile with its operands and addresses.
    usable_registers_per_thread: int | None = numeric_field("registers", 8, 1024, integer=True, kinds=("gpu",))
    #: Granularity of register allocation per TEU.
    register_allocation_unit: int | None = numeric_field("registers", 1, 4096, integer=True, kinds=("gpu",))
    #: Launch and residency limits.
    threads_per_block: int | None = numeric_field("threads", 1, 1 << 16, integer=True, kinds=("gpu",))
    threads_per_unit: int | None = numeric_field("threads", 1, 1 << 16, integer=True, kinds=("gpu", "bsp"))
    blocks_per_unit: int | None = numeric_field("blocks", 1, 1 << 12, integer=True, kinds=("gpu",))
    #: Static scratchpad limit of one block.
    shared_bytes_per_block: int | None = numeric_field("bytes", 1024, 1 << 26, integer=True, kinds=("gpu",))
    #: CPU: number of architectural vector registers, and of those available for accumulators.
    vector_registers: int | None = numeric_field("registers", 4, 1024, integer=True, kinds=("cpu",))
    usable_vector_registers: int | None = numeric_field("registers", 2, 1024, integer=True, kinds=("cpu",))


#: Values that no kernel's time depends on.
NOT_OF_KERNELS = frozenset({
    "process_bytes", "process_convolution_bytes", "process_eager_bytes", "process_least_bytes", "process_most_bytes",
    "link_bytes_per_s", "link_latency_s", "execution.fault_s",
    "memory_layers.global.reported_bytes", "memory_layers.global.reported_most_bytes",
})  # fmt: skip
#: Expected error of an unvalidated predicted time.
UNVALIDATED_ERROR = 0.5


@dataclass(frozen=True, repr=False)
class Accuracy(Section):
    """Expected relative errors (one sigma) of predictions for this device, as found by validation.

    Every field is optional; :mod:`roller.perf.expected_errors` gives the defaults.
    """

    #: Standard deviation of ``ln(measured / predicted)`` about zero, for predicted times.
    prediction_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    #: The same for kernels that are compute-bound, bound by a memory layer, or bound by latencies and launches.
    compute_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    memory_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    overhead_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    #: The same for programs that use a matrix unit, whatever bounds them.
    matrix_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    #: Error added for each mechanism that no validated kernel had (pipelining, Winograd, traversal along windows).
    mechanism_error: float | None = numeric_field("relative", 0, 5, required=False)
    #: Error of the predicted ratio between two candidates of one expression, which have most errors in common.
    ranking_error: float | None = numeric_field("relative", 1e-3, 5, required=False)
    #: The same for two candidates that share structure, register tile and staging.
    same_kernel_error: float | None = numeric_field("relative", 1e-3, 5, required=False)

    def for_unvalidated_numbers(self) -> Accuracy:
        """Return the errors to expect for changed device values; those of ratios, in which changes cancel, stay."""
        matrix = None if self.matrix_error is None else max(self.matrix_error, UNVALIDATED_ERROR)
        whole = max(self.prediction_error or UNVALIDATED_ERROR, UNVALIDATED_ERROR)
        return Accuracy(whole, matrix_error=matrix, mechanism_error=self.mechanism_error,
                        ranking_error=self.ranking_error, same_kernel_error=self.same_kernel_error)  # fmt: skip


@dataclass(frozen=True, repr=False)
class MemoryLayer(Section):
    """One level of the memory hierarchy."""

    name: str
    scope: Literal["thread", "unit", "device"]  #: Owner of one instance: ``"thread"``, ``"unit"`` or ``"device"``
    tiled: bool  #: Whether an rTile is stored here
    capacity_bytes: int = numeric_field("bytes", 64, 1 << 50, integer=True)  #: Capacity of one instance
    #: Device-wide total over all instances; where the read and triad bandwidths are given, that of copies (as many
    #: writes as reads).
    bandwidth_bytes_per_s: float = numeric_field("bytes/s", 1e8, 1e17)
    transaction_bytes: int = numeric_field("bytes", 1, 1 << 16, integer=True)
    #: GPU DRAM: total bandwidth for read-only traffic, and for two reads per write; ``None``: the same for all traffic.
    read_bandwidth_bytes_per_s: float | None = numeric_field("bytes/s", 1e8, 1e17, required=False)
    triad_bandwidth_bytes_per_s: float | None = numeric_field("bytes/s", 1e8, 1e17, required=False)
    #: GPU device memory: smallest and largest size, over drivers, that programs see (``total_memory`` in PyTorch).
    reported_bytes: int | None = numeric_field("bytes", 64, 1 << 50, integer=True, required=False)
    reported_most_bytes: int | None = numeric_field("bytes", 64, 1 << 50, integer=True, required=False)
    #: CPU: page size, first-level TLB entries, time of a first-level miss that hits in the next level. GPU: page size
    #: and last-level TLB entries.
    page_bytes: int | None = numeric_field("bytes", 256, 1 << 30, integer=True, required=False)
    tlb_entries: int | None = numeric_field("pages", 1, 1 << 20, integer=True, required=False)
    tlb_miss_s: float | None = numeric_field("s", 1e-11, 1e-4, required=False)
    #: Minimum number of bytes fetched from the next layer (the DRAM burst), where larger than a transaction.
    fetch_bytes: int | None = numeric_field("bytes", 1, 1 << 16, integer=True, required=False)
    #: Budget in this layer for the tiles of one block (GPU) or one task (CPU).
    usable_bytes: int | None = numeric_field("bytes", 16, 1 << 50, integer=True, required=False)
    #: Share of a cache in which data survives other traffic until reuse.
    kept_share: float | None = numeric_field("share", 0.01, 1, required=False)
    #: Number of scratchpad bytes that the system reserves per resident block.
    reserved_bytes: int | None = numeric_field("bytes", 0, 1 << 20, integer=True, required=False)
    banks: int | None = numeric_field("banks", 1, 1024, integer=True, required=False)
    bank_width_bytes: int | None = numeric_field("bytes", 1, 1024, integer=True, required=False)
    line_bytes: int | None = numeric_field("bytes", 8, 4096, integer=True, required=False)
    latency_s: float | None = numeric_field("s", 1e-11, 1e-3, required=False)  #: Load-to-use latency
    #: Bandwidth of one resident TEU alone on the device.
    bandwidth_per_teu_bytes_per_s: float | None = numeric_field("bytes/s", 1e6, 1e14, required=False)
    #: ``p`` in ``bandwidth(W) = ((W*b)**-p + peak**-p)**(-1/p)`` for W resident TEUs with ``b`` each.
    saturation_exponent: float | None = numeric_field("", 0.1, 20, required=False)
    #: GPU with ``power_w``: energy of the board per byte that passes the layer; ``None``: included in the energies of
    #: cycles.
    byte_j: float | None = numeric_field("J", 1e-14, 1e-6, required=False)

    @property
    def peak_bytes_per_s(self) -> float:
        """Largest bandwidth over all kinds of traffic."""
        return max(
            self.bandwidth_bytes_per_s, self.read_bandwidth_bytes_per_s or 0.0, self.triad_bandwidth_bytes_per_s or 0.0
        )

    def with_bandwidth_factor(self, factor: float) -> MemoryLayer:
        """Return the layer with all bandwidths multiplied by ``factor``."""
        kinds = ("bandwidth_bytes_per_s", "read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s")
        given = {k: getattr(self, k) for k in kinds}
        return replace(self, **{k: v * factor for k, v in given.items() if v is not None})

    def with_clock_factor(self, factor: float) -> MemoryLayer:
        """Return the layer, which is in the units' clock domain, for a clock multiplied by ``factor``."""
        latency = None if self.latency_s is None else self.latency_s / factor
        return replace(self.with_bandwidth_factor(factor), latency_s=latency)

    @property
    def budget_bytes(self) -> int:
        """Number of bytes available to tiles: the usable bytes if they are given, otherwise the whole capacity."""
        return self.capacity_bytes if self.usable_bytes is None else self.usable_bytes

    @property
    def kept_bytes(self) -> float:
        """Number of bytes of a cache that survive until reuse; the whole capacity by default."""
        return self.capacity_bytes * (1.0 if self.kept_share is None else self.kept_share)


def numeric_fields(section: type) -> dict[str, Quantity]:
    """Return the unit and range of each numeric field of a section class."""
    return {f.name: f.metadata["quantity"] for f in fields(section) if "quantity" in f.metadata}


def present_numbers(section: object) -> dict[str, float]:
    """Return the values present in a section, keyed by field name."""
    found = {name: getattr(section, name) for name in numeric_fields(type(section))}
    return {k: v for k, v in found.items() if v is not None}
