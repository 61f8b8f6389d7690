"""GPU templates and the GPU part of the performance model."""

from roller.templates.gpu.common.compute import compute_rate_per_unit
from roller.templates.gpu.common.occupancy import (
    allocated_registers,
    blocks_per_unit_by_resource,
    occupancy,
    operand_registers,
    scratchpad_bytes,
    usable_registers,
)
from roller.templates.gpu.common.operand_copies import copies_both_operands_asynchronously
from roller.templates.gpu.common.price import BOTTLENECKS, Parts
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.traffic import dram_bandwidth
from roller.templates.gpu.common.window_products import (
    matrix_product_batch,
    matrix_product_of_batch,
    window_product_batch,
)
from roller.templates.gpu.price_terms import explained
from roller.templates.gpu.registry import (
    TEMPLATES,
    arithmetic_bound_s,
    lower_bound_s,
    price,
    price_programs,
    programs_of,
    programs_of_form,
)

__all__ = [
    "BOTTLENECKS",
    "TEMPLATES",
    "SharedMemoryLayout",
    "Parts",
    "allocated_registers",
    "copies_both_operands_asynchronously",
    "arithmetic_bound_s",
    "blocks_per_unit_by_resource",
    "compute_rate_per_unit",
    "dram_bandwidth",
    "explained",
    "matrix_product_batch",
    "lower_bound_s",
    "occupancy",
    "window_product_batch",
    "programs_of_form",
    "price",
    "price_programs",
    "matrix_product_of_batch",
    "programs_of",
    "operand_registers",
    "scratchpad_bytes",
    "usable_registers",
]
