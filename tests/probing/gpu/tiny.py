"""A GPU so small that a CPU walks through all its probes; and every plan by the name of its source."""

import re

from roller import load_spec
from roller.probing.gpu import compute, memory

PLANS = {
    "dram": memory.dram_plan, "l2": memory.l2_plan, "transactions": memory.transactions_plan,
    "latency": memory.latency_plan, "shared": compute.shared_plan, "tiles": compute.tiles_plan,
    "rates": compute.rates_plan, "matrix": compute.matrix_plan,
    "group_matrix": compute.group_matrix_plan, "control": compute.control_plan,
}  # fmt: skip


def tiny(base="h200"):
    return load_spec(base).with_overrides({
        "units": 2, "limits.threads_per_unit": 1024, "memory_layers.l2.capacity_bytes": 1 << 18,
        "memory_layers.global.capacity_bytes": 1 << 24,
    })  # fmt: skip


def entries_of(source):
    """The kernels of a source, whatever the target."""
    return tuple(re.findall(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(", source))
