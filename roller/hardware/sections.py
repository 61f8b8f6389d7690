"""The sections of a device specification: one frozen class each, every number with its unit and range.

The metadata of the fields is the schema: reader and overrides check against it and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from roller.core.display import non_defaults
from roller.hardware.checks import Quantity
from roller.targets import KINDS

#: Instruction classes every device must give a rate for.
OPERATION_CLASSES = ("fma", "add", "special", "convert", "issue", "load_store")
#: Further classes a device may give a rate for, alone or per dtype (``matrix.float16``).
OPTIONAL_CLASSES = ("matrix", "group_matrix", "dot", "integer", "convert_to")
#: Dtypes a rate may be given for; ``tfloat32`` is float32 that a matrix unit rounds to 11 digits as it multiplies.
DTYPES = ("float16", "bfloat16", "tfloat32", "float32", "float64", "int8", "int16", "int32", "float8_e4m3fn",
          "float8_e5m2")  # fmt: skip
#: Range of an instruction rate.
RATE = Quantity("operations/cycle/unit", 1e-3, 1e7)


def number(
    unit: str,
    minimum: float,
    maximum: float,
    *,
    integer: bool = False,
    required: bool = True,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> Any:
    """Declare a numeric field; ``kinds`` are the kinds of device that must give it."""
    metadata = {"quantity": Quantity(unit, minimum, maximum, integer, kinds if required else ())}
    if required and len(kinds) == len(KINDS):
        return field(metadata=metadata)
    return field(default=None, metadata=metadata)


class Section:
    """Part of a specification: shows what differs from the defaults."""

    def __repr__(self) -> str:
        return non_defaults(self)


@dataclass(frozen=True, repr=False)
class Teu(Section):
    """Tile execution unit: the threads or lanes that execute one instruction together.

    Parameters
    ----------
    name
        ``"warp"``, ``"wavefront"`` or ``"vector"``.
    lanes
        Threads of a warp; float32 lanes of a vector register.
    schedulers_per_unit
        TEUs a unit issues from per cycle; FMA ports on a CPU.
    datapath_lanes
        Of a CPU: float32 lanes that an instruction passes at once. Vectors of more take several passes, so that
        shorter ones cost less (Zen 1: 4 of 8 lanes, Zen 4: 8 of 16).
    """

    name: str
    lanes: int = number("lanes", 1, 1024, integer=True)
    schedulers_per_unit: int = number("schedulers", 1, 64, integer=True)
    datapath_lanes: int | None = number("lanes", 1, 1024, integer=True, required=False)


@dataclass(frozen=True, repr=False)
class Compute(Section):
    """Instruction throughput of one unit.

    Parameters
    ----------
    rates
        ``((class, operations per cycle per unit), ...)``; an operation is one thread's or lane's. Classes:
        ``fma``, ``add`` (also max, compare), ``special`` (exp, rsqrt, division), ``convert``, ``issue``
        (instructions issued), ``load_store`` (scratchpad or L1 accesses); ``class.dtype`` where a dtype differs.
        ``convert.float16`` widens float16, ``convert_to.float16`` narrows to it (absent: as fast as it is widened),
        ``convert.float64`` is every conversion from and to 64 bits.
    """

    rates: tuple[tuple[str, float], ...]

    @cached_property
    def ops_per_cycle_per_unit(self) -> dict[str, float]:
        """Rates by class name."""
        return dict(self.rates)


@dataclass(frozen=True, repr=False)
class Execution(Section):
    """Times that do not shrink with throughput, and what arithmetic draws of a board's power.

    Parameters
    ----------
    step_latency_s
        Dependent latency of one reduction step of a register tile (scratchpad load to FMA).
    step_issue_s
        Issue time per TEU and reduction step beyond the FMAs (scratchpad loads, index arithmetic).
    barrier_s
        Time a block loses at a barrier; on a CPU the loop overhead of a panel step.
    launch_s
        Time to start a kernel; on a CPU to call it, on one thread.
    fork_s
        CPU: time to hand the tasks of a parallel loop to waiting workers and to see the last one done.
    overlap_blocks
        Groups of co-resident blocks that are out of step, so that one's loads hide behind another's arithmetic.
    async_copy_bytes
        Widest copy from global memory to the scratchpad that needs no register and is waited for later; absent: none.
    element_gather_s, element_copy_s, element_scatter_s
        CPU: time per element of a copy that collects single elements, of one that moves rows, and of a store whose
        neighbours lie apart.
    misses_in_flight
        CPU: cache misses a core keeps in flight beside its arithmetic.
    split_load_slots
        CPU: load slots a vector load takes beyond its own where it touches two cache lines; 1 where it is unknown.
    prefetched_lines
        CPU: lines of a stream after which its prefetcher is ahead: of shorter runs a part is waited for.
    fault_s
        CPU: time of the first touch of a page that the system hands out; no kernel here meets one.
    busy_cycle_j, matrix_cycle_j, idle_cycle_j
        Energy the whole board draws in a cycle of one unit whose pipes, or whose matrix unit, multiply and add, and in
        any other cycle of a running kernel: with ``power_w`` they bound how many cycles a second has. Absent: no kernel
        meets the limit; the matrix unit draws what the pipes do; nothing.
    standing_w
        Power the board draws while its clocks are up and no kernel runs: cycles have the rest of ``power_w``. Absent:
        the energies of cycles include it.
    """

    step_latency_s: float = number("s", 0, 1e-3)
    step_issue_s: float = number("s", 0, 1e-3)
    barrier_s: float = number("s", 0, 1e-2)
    launch_s: float = number("s", 0, 1.0)
    fork_s: float | None = number("s", 0, 1e-2, kinds=("cpu",))
    overlap_blocks: float | None = number("blocks", 1, 64, required=False)
    async_copy_bytes: int | None = number("bytes", 4, 1024, integer=True, required=False)
    element_gather_s: float | None = number("s", 0, 1e-6, kinds=("cpu",))
    element_copy_s: float | None = number("s", 0, 1e-6, kinds=("cpu",))
    element_scatter_s: float | None = number("s", 0, 1e-6, kinds=("cpu",))
    misses_in_flight: float | None = number("misses", 1, 1024, kinds=("cpu",))
    split_load_slots: float | None = number("slots", 0, 64, required=False)
    prefetched_lines: float | None = number("lines", 1, 1 << 12, required=False)
    fault_s: float | None = number("s", 0, 1e-3, required=False)
    busy_cycle_j: float | None = number("J", 1e-12, 1e-3, required=False)
    matrix_cycle_j: float | None = number("J", 1e-12, 1e-3, required=False)
    idle_cycle_j: float | None = number("J", 1e-13, 1e-3, required=False)
    standing_w: float | None = number("W", 0, 1e5, required=False)


@dataclass(frozen=True, repr=False)
class Limits(Section):
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

    registers_per_unit: int | None = number("registers", 1024, 1 << 24, integer=True, kinds=("gpu",))
    registers_per_thread: int | None = number("registers", 8, 1024, integer=True, kinds=("gpu",))
    usable_registers_per_thread: int | None = number("registers", 8, 1024, integer=True, kinds=("gpu",))
    register_allocation_unit: int | None = number("registers", 1, 4096, integer=True, kinds=("gpu",))
    threads_per_block: int | None = number("threads", 1, 1 << 16, integer=True, kinds=("gpu",))
    threads_per_unit: int | None = number("threads", 1, 1 << 16, integer=True, kinds=("gpu", "bsp"))
    blocks_per_unit: int | None = number("blocks", 1, 1 << 12, integer=True, kinds=("gpu",))
    shared_bytes_per_block: int | None = number("bytes", 1024, 1 << 26, integer=True, kinds=("gpu",))
    vector_registers: int | None = number("registers", 4, 1024, integer=True, kinds=("cpu",))
    usable_vector_registers: int | None = number("registers", 2, 1024, integer=True, kinds=("cpu",))


#: Numbers that no kernel's time depends on.
NOT_OF_KERNELS = frozenset({
    "process_bytes", "process_convolution_bytes", "process_eager_bytes", "process_least_bytes", "process_most_bytes",
    "link_bytes_per_s", "link_latency_s", "execution.fault_s",
    "memory_layers.global.reported_bytes", "memory_layers.global.reported_most_bytes",
})  # fmt: skip
#: Expected error of a predicted time where nobody has held any against measured ones.
UNVALIDATED_ERROR = 0.5


@dataclass(frozen=True, repr=False)
class Accuracy(Section):
    """How far the model's predictions for this device are off, as its validation found; relative, one sigma.

    Every field may be absent: :mod:`roller.perf.accuracy` says what holds then.

    Parameters
    ----------
    prediction_error
        Of predicted seconds: standard deviation of ``ln(measured / predicted)`` about zero.
    compute_error, memory_error, overhead_error
        The same where the estimate is bound by arithmetic, by a memory layer, or by latencies and launches.
    matrix_error
        The same for programs of a matrix unit, whatever bounds them.
    mechanism_error
        What every mechanism adds that no validated kernel had (pipelines of threads, Winograd, walks along windows).
    ranking_error
        Of the ratio of two candidates of one expression; most of what is wrong is wrong for both.
    same_kernel_error
        The same for two candidates that share structure, register tile and staging.
    """

    prediction_error: float | None = number("relative", 1e-3, 5, required=False)
    compute_error: float | None = number("relative", 1e-3, 5, required=False)
    memory_error: float | None = number("relative", 1e-3, 5, required=False)
    overhead_error: float | None = number("relative", 1e-3, 5, required=False)
    matrix_error: float | None = number("relative", 1e-3, 5, required=False)
    mechanism_error: float | None = number("relative", 0, 5, required=False)
    ranking_error: float | None = number("relative", 1e-3, 5, required=False)
    same_kernel_error: float | None = number("relative", 1e-3, 5, required=False)

    def unvalidated(self) -> Accuracy:
        """Return what is expected of other numbers than those validated: no error of a time is below the usual one.

        Ratios of candidates keep theirs: what is wrong with a number of the device is wrong for both.
        """
        matrix = None if self.matrix_error is None else max(self.matrix_error, UNVALIDATED_ERROR)
        whole = max(self.prediction_error or UNVALIDATED_ERROR, UNVALIDATED_ERROR)
        return Accuracy(whole, matrix_error=matrix, mechanism_error=self.mechanism_error,
                        ranking_error=self.ranking_error, same_kernel_error=self.same_kernel_error)  # fmt: skip


@dataclass(frozen=True, repr=False)
class MemoryLayer(Section):
    """One level of the memory hierarchy.

    Parameters
    ----------
    name
        One of its kind's layers (:class:`roller.targets.DeviceKind`).
    scope
        Who owns one instance: ``"thread"``, ``"unit"`` or ``"device"``.
    tiled
        Whether an rTile lives here.
    capacity_bytes
        Bytes of one instance.
    reported_bytes, reported_most_bytes
        GPU, memory of the device: the bytes that programs are told it has (``total_memory`` of PyTorch), the fewest
        and the most over drivers; what a step has to fit. Absent: unknown; the same as the fewest.
    bandwidth_bytes_per_s
        Device-wide total over all instances; where the next two are given, that of copies: as many writes as reads.
    read_bandwidth_bytes_per_s, triad_bandwidth_bytes_per_s
        GPU, DRAM: the same of traffic that only reads, and of two reads for every write; absent: all traffic is alike.
    transaction_bytes
        Smallest unit moved.
    fetch_bytes
        Bytes one access moves at least from behind this layer (the DRAM burst), where larger than a transaction.
    page_bytes, tlb_entries, tlb_miss_s
        CPU: a page, pages the first-level TLB holds, and the time of a miss that the next level answers. GPU, memory of
        the device: a page, and pages the last TLB holds.
    usable_bytes
        Budget of the tiles of one block (GPU) or one task (CPU) in this layer.
    kept_share
        Share of a cache that data may fill and still be there when they are asked for again, after whatever else
        went through it meanwhile.
    reserved_bytes
        Bytes of a scratchpad that the system takes of every resident block beside its own; absent: none.
    banks, bank_width_bytes
        Interleaved banks of a scratchpad.
    line_bytes
        Cache line.
    latency_s
        Load-to-use latency.
    bandwidth_per_teu_bytes_per_s
        What one resident TEU draws when it is alone on the device.
    byte_j
        GPU with ``power_w``, of the shared cache and of the device's memory: energy the board draws for a byte that
        passes the layer, beside the energies of cycles; absent: those include it.
    saturation_exponent
        ``p`` of ``bandwidth(W) = ((W*b)**-p + peak**-p)**(-1/p)`` for W resident TEUs of ``b`` each.
    """

    name: str
    scope: Literal["thread", "unit", "device"]
    tiled: bool
    capacity_bytes: int = number("bytes", 64, 1 << 50, integer=True)
    bandwidth_bytes_per_s: float = number("bytes/s", 1e8, 1e17)
    transaction_bytes: int = number("bytes", 1, 1 << 16, integer=True)
    read_bandwidth_bytes_per_s: float | None = number("bytes/s", 1e8, 1e17, required=False)
    triad_bandwidth_bytes_per_s: float | None = number("bytes/s", 1e8, 1e17, required=False)
    reported_bytes: int | None = number("bytes", 64, 1 << 50, integer=True, required=False)
    reported_most_bytes: int | None = number("bytes", 64, 1 << 50, integer=True, required=False)
    page_bytes: int | None = number("bytes", 256, 1 << 30, integer=True, required=False)
    tlb_entries: int | None = number("pages", 1, 1 << 20, integer=True, required=False)
    tlb_miss_s: float | None = number("s", 1e-11, 1e-4, required=False)
    fetch_bytes: int | None = number("bytes", 1, 1 << 16, integer=True, required=False)
    usable_bytes: int | None = number("bytes", 16, 1 << 50, integer=True, required=False)
    kept_share: float | None = number("share", 0.01, 1, required=False)
    reserved_bytes: int | None = number("bytes", 0, 1 << 20, integer=True, required=False)
    banks: int | None = number("banks", 1, 1024, integer=True, required=False)
    bank_width_bytes: int | None = number("bytes", 1, 1024, integer=True, required=False)
    line_bytes: int | None = number("bytes", 8, 4096, integer=True, required=False)
    latency_s: float | None = number("s", 1e-11, 1e-3, required=False)
    bandwidth_per_teu_bytes_per_s: float | None = number("bytes/s", 1e6, 1e14, required=False)
    saturation_exponent: float | None = number("", 0.1, 20, required=False)
    byte_j: float | None = number("J", 1e-14, 1e-6, required=False)

    @property
    def most_bytes_per_s(self) -> float:
        """Bandwidth of the kind of traffic that is fastest: nothing moves bytes faster."""
        return max(
            self.bandwidth_bytes_per_s, self.read_bandwidth_bytes_per_s or 0.0, self.triad_bandwidth_bytes_per_s or 0.0
        )

    def at_bandwidth(self, factor: float) -> MemoryLayer:
        """Return the layer with all of its bandwidths times ``factor``."""
        kinds = ("bandwidth_bytes_per_s", "read_bandwidth_bytes_per_s", "triad_bandwidth_bytes_per_s")
        given = {k: getattr(self, k) for k in kinds}
        return replace(self, **{k: v * factor for k, v in given.items() if v is not None})

    def at_clock(self, factor: float) -> MemoryLayer:
        """Return a layer of the units' own clock at ``factor`` times that clock."""
        latency = None if self.latency_s is None else self.latency_s / factor
        return replace(self.at_bandwidth(factor), latency_s=latency)

    @property
    def budget_bytes(self) -> int:
        """Bytes tiles may take: the usable ones, or all where nothing is said of them."""
        return self.capacity_bytes if self.usable_bytes is None else self.usable_bytes

    @property
    def kept_bytes(self) -> float:
        """Bytes of a cache that are still there when they are asked for again; all where nothing is said of it."""
        return self.capacity_bytes * (1.0 if self.kept_share is None else self.kept_share)


def quantities(section: type) -> dict[str, Quantity]:
    """Return the numeric fields of a section's class with their unit and range."""
    return {f.name: f.metadata["quantity"] for f in fields(section) if "quantity" in f.metadata}


def numbers_of(section: object) -> dict[str, float]:
    """Return the numbers a section holds, absent ones left out."""
    found = {name: getattr(section, name) for name in quantities(type(section))}
    return {k: v for k, v in found.items() if v is not None}
