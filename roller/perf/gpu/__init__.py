"""The GPU half of the micro performance model."""

from roller.perf.gpu.compute import compute_rate_per_unit
from roller.perf.gpu.explained import explained
from roller.perf.gpu.laid_out import LaidOut
from roller.perf.gpu.matrix_copies import are_async
from roller.perf.gpu.occupancy import (
    allocated_registers,
    block_limits,
    occupancy,
    register_words,
    scratchpad_bytes,
    usable_registers,
)
from roller.perf.gpu.price import Parts, arithmetic_bound_s, lower_bound_s
from roller.perf.gpu.products import inner_batch, outer_batch, products_of
from roller.perf.gpu.structures import price
from roller.perf.gpu.traffic import dram_bandwidth

__all__ = [
    "LaidOut",
    "Parts",
    "allocated_registers",
    "are_async",
    "arithmetic_bound_s",
    "block_limits",
    "compute_rate_per_unit",
    "dram_bandwidth",
    "explained",
    "inner_batch",
    "lower_bound_s",
    "occupancy",
    "outer_batch",
    "price",
    "products_of",
    "register_words",
    "scratchpad_bytes",
    "usable_registers",
]
