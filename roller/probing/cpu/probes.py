"""Probes of a CPU in the order in which they run; to add one, write a function, a source, and a line here."""

from roller.probing.cpu import memory, overheads, rates
from roller.probing.probe_header import Probe

_RATE = "compute.ops_per_cycle_per_unit"
_CACHES = ("l1", "l2", "l3")
_LAYERS = (*_CACHES, "dram")


def _layer_fields(layers: tuple[str, ...], field: str) -> tuple[str, ...]:
    return tuple(f"memory_layers.{x}.{field}" for x in layers)


#: The clock comes first, because the others count cycles with it.
PROBES: tuple[Probe, ...] = (
    Probe("clock", "cpu", ("clock_hz",), "cpu/clock.c", rates.measure_clock),
    Probe("fma_peak", "cpu", (f"{_RATE}.fma", f"{_RATE}.fma.float64", "teu.schedulers_per_unit",
                              "teu.datapath_lanes", "memory_layers.register.bandwidth_bytes_per_s"),
          "cpu/fma_peak.c", rates.measure_fma_peak),
    Probe("byte_products", "cpu", tuple(f"{_RATE}.{x}" for x in ("dot.int8", "dot.int16", "matrix.int8")),
          "cpu/byte_products.c", rates.measure_byte_products),
    Probe("fma_latency", "cpu", ("execution.step_latency_s",), "cpu/fma_latency.c", rates.measure_fma_latency),
    Probe("simple_rates", "cpu", tuple(f"{_RATE}.{x}" for x in ("add", "add.float64", "convert")),
          "cpu/simple_rates.c", rates.measure_simple_rates),
    Probe("special_rate", "cpu", (f"{_RATE}.special",), "cpu/special_rate.c", rates.measure_special_rate),
    Probe("issue_rate", "cpu", (f"{_RATE}.issue",), "cpu/issue_rate.c", rates.measure_issue_rate),
    Probe("micro_kernel", "cpu", ("execution.step_issue_s",), "cpu/micro_kernel.c", rates.measure_step_overhead),
    Probe("bandwidth", "cpu", (f"{_RATE}.load_store", *_layer_fields(_LAYERS, "bandwidth_bytes_per_s"),
                               *_layer_fields(("l3", "dram"), "bandwidth_per_teu_bytes_per_s"),
                               *_layer_fields(("l3", "dram"), "saturation_exponent"),
                               *_layer_fields(_LAYERS, "store_bandwidth_bytes_per_s")),
          "cpu/bandwidth.c", memory.measure_bandwidth),
    Probe("latency", "cpu", (*_layer_fields(_LAYERS, "latency_s"), *_layer_fields(("l1", "l2"), "capacity_bytes")),
          "cpu/latency.c",
          memory.measure_latency),
    Probe("line", "cpu", _layer_fields(_CACHES, "line_bytes"), "cpu/line.c", memory.measure_line_size),
    Probe("tlb", "cpu", ("memory_layers.l1.tlb_entries", "memory_layers.l1.tlb_miss_s"), "cpu/tlb.c",
          memory.measure_tlb),
    Probe("overlap", "cpu", ("execution.misses_in_flight",), "cpu/overlap.c", memory.measure_miss_overlap),
    Probe("split", "cpu", ("execution.split_load_slots",), "cpu/split.c", memory.measure_split_loads),
    Probe("pages", "cpu", ("execution.fault_s",), "cpu/pages.c", memory.pages),
    Probe("tasks", "cpu", ("execution.barrier_s",), "cpu/tasks.c", overheads.measure_task_overhead),
    Probe("elements", "cpu", tuple(f"execution.element_{x}_s" for x in ("gather", "copy", "scatter")),
          "cpu/elements.c", overheads.measure_element_copies),
    Probe("launch", "cpu", ("execution.launch_s", "execution.fork_s"), "cpu/launch.c", overheads.measure_launch),
)  # fmt: skip
