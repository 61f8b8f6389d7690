"""Probes of a GPU: CUDA C that also compiles as HIP, with one source per quantity."""

from roller.probing.gpu import compute, memory
from roller.probing.probe_header import Probe

_RATES = "compute.ops_per_cycle_per_unit"
_SHARED, _L2, _GLOBAL = (f"memory_layers.{name}" for name in ("shared", "l2", "global"))

#: In order of execution: the clock, which rates per cycle need, comes first.
PROBES: tuple[Probe, ...] = (
    Probe("tiles", "gpu", ("clock_hz", f"{_RATES}.fma", "execution.step_latency_s", "execution.step_issue_s"),
          "gpu/tiles.cu", compute.measure_tiles),
    Probe("rates", "gpu", tuple(f"{_RATES}.{c}" for c in ("add", "special", "convert.float16", "convert_to.float16",
                                                         "fma.float16", "fma.float64", "integer", "issue")),
          "gpu/rates.cu", compute.rates),
    Probe("matrix", "gpu", tuple(f"{_RATES}.matrix.{d}" for d in ("float16", "bfloat16", "int8")), "gpu/matrix.cu",
          compute.measure_matrix),
    Probe("group_matrix", "gpu", tuple(f"{_RATES}.group_matrix.{d}" for d in ("float16", "bfloat16")),
          "gpu/group_matrix.cu", compute.measure_group_matrix),
    Probe("shared", "gpu", (f"{_SHARED}.bandwidth_bytes_per_s", f"{_SHARED}.banks", f"{_SHARED}.bank_width_bytes",
                            f"{_RATES}.load_store"), "gpu/shared.cu", compute.measure_shared),
    Probe("latency", "gpu", (f"{_SHARED}.latency_s", f"{_L2}.latency_s", f"{_GLOBAL}.latency_s"), "gpu/latency.cu",
          memory.measure_latency),
    Probe("control", "gpu", ("execution.launch_s", "execution.barrier_s"), "gpu/control.cu", compute.measure_control),
    Probe("l2", "gpu", (f"{_L2}.bandwidth_bytes_per_s", f"{_L2}.capacity_bytes"), "gpu/l2.cu", memory.measure_l2),
    Probe("transactions", "gpu", (f"{_L2}.transaction_bytes", f"{_GLOBAL}.transaction_bytes",
                                  f"{_GLOBAL}.fetch_bytes"), "gpu/transactions.cu",
          memory.measure_transactions),
    Probe("dram", "gpu", (f"{_GLOBAL}.bandwidth_bytes_per_s", f"{_GLOBAL}.bandwidth_per_teu_bytes_per_s",
                          f"{_GLOBAL}.saturation_exponent"), "gpu/dram.cu", memory.measure_dram),
)  # fmt: skip
