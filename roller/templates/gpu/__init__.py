"""GPU templates and the GPU part of the performance model."""

from roller.templates.gpu.common.compute import compute_rate_per_unit
from roller.templates.gpu.common.occupancy import (
    allocated_registers,
    block_limits,
    occupancy,
    register_words,
    scratchpad_bytes,
    usable_registers,
)
from roller.templates.gpu.common.operand_copies import are_async
from roller.templates.gpu.common.price import BOTTLENECKS, Parts
from roller.templates.gpu.common.products import inner_batch, outer_batch, products_of
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.traffic import dram_bandwidth
from roller.templates.gpu.explained import explained
from roller.templates.gpu.registry import (
    TEMPLATES,
    arithmetic_bound_s,
    lower_bound_s,
    pool,
    price,
    price_programs,
    programs_of,
)

__all__ = [
    "BOTTLENECKS",
    "TEMPLATES",
    "SharedMemoryLayout",
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
    "pool",
    "price",
    "price_programs",
    "products_of",
    "programs_of",
    "register_words",
    "scratchpad_bytes",
    "usable_registers",
]
