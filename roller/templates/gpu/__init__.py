"""GPU templates and the GPU part of the performance model."""

from roller.templates.gpu.common.arithmetic_cycles import unit_flops_per_s
from roller.templates.gpu.common.convert_winograd_batches import (
    find_matrix_product,
    to_matrix_product_batch,
    to_window_product_batch,
)
from roller.templates.gpu.common.l2_and_dram_traffic import dram_bandwidth
from roller.templates.gpu.common.matrix_operand_copies import copies_both_operands_asynchronously
from roller.templates.gpu.common.occupancy import (
    blocks_per_unit_by_resource,
    occupancy,
    operand_register_limit,
    operand_registers,
    registers_needed_per_thread,
    scratchpad_bytes,
)
from roller.templates.gpu.common.price import BOTTLENECKS, Parts
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
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
    "registers_needed_per_thread",
    "copies_both_operands_asynchronously",
    "arithmetic_bound_s",
    "blocks_per_unit_by_resource",
    "unit_flops_per_s",
    "dram_bandwidth",
    "explained",
    "to_matrix_product_batch",
    "lower_bound_s",
    "occupancy",
    "to_window_product_batch",
    "programs_of_form",
    "price",
    "price_programs",
    "find_matrix_product",
    "programs_of",
    "operand_registers",
    "scratchpad_bytes",
    "operand_register_limit",
]
