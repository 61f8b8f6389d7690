"""Generic CPU profiles for instruction sets without a shipped profile, from which a probe starts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from roller.errors import SpecError
from roller.hardware.reader import parse_spec
from roller.hardware.spec import DeviceSpec


@dataclass(frozen=True)
class _InstructionSet:
    """Numbers of float32 lanes and vector registers, code generation name, and the target triple if not the host's."""

    lanes: int
    registers: int
    mcpu: str
    mtriple: str = ""


_SETS = {
    "cpu-avx512": _InstructionSet(16, 32, "skylake-avx512"),
    "cpu-avx2": _InstructionSet(8, 16, "haswell"),
    "cpu-neon": _InstructionSet(4, 32, "neoverse-n1", "aarch64-linux-gnu"),
}
#: Clock that turns assumed cycles into seconds until a clock is detected or measured; totals are for one core.
_CLOCK_HZ = 3.0e9
#: Maps the number of vector registers to the number reserved for a micro-kernel's operands; LLVM spills with fewer.
_OPERAND_REGISTERS = {16: 3, 32: 8}

_TEXT = """
name: {name}
kind: cpu
description: CPU with the instruction set of {name}, nothing else known
target: {{language: llvm, mcpu: {mcpu}{mtriple}}}
units: {{assumed: 1, note: "cores"}}
clock_hz: {{assumed: {clock:.6e}}}
teu:
  name: vector
  lanes: {{datasheet: {lanes}, note: "float32"}}
  schedulers_per_unit: {{assumed: 2, note: "FMA ports"}}
compute:
  ops_per_cycle_per_unit:
    fma: {{assumed: {pair}, note: "lanes x FMA ports"}}
    fma.float64: {{assumed: {lanes}}}
    add: {{assumed: {pair}}}
    add.float64: {{assumed: {lanes}}}
    special: {{assumed: {special}, note: "polynomials of about 16 vector operations"}}
    convert: {{assumed: {lanes}}}
    issue: {{assumed: {issue}, note: "4 vector instructions per cycle"}}
    load_store: {{assumed: {pair}, note: "2 vector loads per cycle"}}
execution:
  step_latency_s: {{assumed: {c4:.6e}, note: "4 cycles: dependent FMA"}}
  step_issue_s: {{assumed: {c1:.6e}, note: "1 cycle: loop and address arithmetic of one step"}}
  barrier_s: {{assumed: {barrier:.6e}, note: "4.5 cycles: loop overhead of one task"}}
  launch_s: {{assumed: 3.0e-7, note: "the foreign-function call, and the kernel's look at its arguments"}}
  fork_s: {{assumed: 2.0e-6, note: "to workers that spin since the last kernel"}}
  element_gather_s: {{assumed: {gather:.6e}, note: "half a cycle: loads and stores of single elements"}}
  element_copy_s: {{assumed: {copy:.6e}, note: "a vector every few cycles: rows that lie in a cache"}}
  element_scatter_s: {{assumed: {c1:.6e}, note: "one store per cycle"}}
  misses_in_flight: {{assumed: 6, note: "cache lines waited for beside the arithmetic"}}
  split_load_slots: {{assumed: 0.5, note: "of a vector load that touches two lines"}}
  prefetched_lines: {{assumed: 8, note: "random programs on Zen 5 (benchmarks/results/cpu_model.md); not probed"}}
  fault_s: {{assumed: 2.0e-6, note: "first touch of a page, under a hypervisor"}}
limits:
  vector_registers: {{datasheet: {registers}}}
  usable_vector_registers: {{assumed: {usable}, note: "accumulators; the rest holds operands"}}
memory_layers:
  - name: register
    scope: unit
    tiled: true
    capacity_bytes: {{datasheet: {register_bytes}}}
    usable_bytes: {{assumed: {usable_bytes}}}
    bandwidth_bytes_per_s: {{assumed: {registers_per_s:.6e}, note: "three 4-byte operands per FMA"}}
    transaction_bytes: {{datasheet: {vector}}}
  - name: l1
    scope: unit
    tiled: true
    capacity_bytes: {{assumed: 32768}}
    usable_bytes: {{assumed: 24576, note: "three quarters"}}
    bandwidth_bytes_per_s: {{assumed: {l1:.6e}, note: "two vectors per cycle"}}
    transaction_bytes: {{datasheet: {vector}}}
    page_bytes: {{datasheet: 4096}}
    tlb_entries: {{assumed: 64}}
    tlb_miss_s: {{assumed: 2.5e-9}}
    line_bytes: {{assumed: 64}}
    latency_s: {{assumed: 1.667e-9, note: "5 cycles"}}
  - name: l2
    scope: unit
    tiled: true
    capacity_bytes: {{assumed: 524288}}
    usable_bytes: {{assumed: 393216, note: "three quarters"}}
    kept_share: {{assumed: 0.5, note: "constants of a model, beside the values that pass"}}
    bandwidth_bytes_per_s: {{assumed: {l2:.6e}, note: "one vector per cycle"}}
    transaction_bytes: {{assumed: 64}}
    line_bytes: {{assumed: 64}}
    latency_s: {{assumed: 4.667e-9, note: "14 cycles"}}
  - name: l3
    scope: device
    tiled: false
    capacity_bytes: {{assumed: 16777216}}
    usable_bytes: {{assumed: 12582912, note: "three quarters"}}
    kept_share: {{assumed: 0.5, note: "constants of a model, beside the values that pass and other users"}}
    bandwidth_bytes_per_s: {{assumed: 5.0e+10, note: "per core"}}
    transaction_bytes: {{assumed: 64}}
    line_bytes: {{assumed: 64}}
    bandwidth_per_teu_bytes_per_s: {{assumed: 5.0e+10, note: "one core"}}
    saturation_exponent: {{assumed: 4, note: "cores add up almost linearly until the slices are busy"}}
    latency_s: {{assumed: 2.0e-8}}
  - name: dram
    scope: device
    tiled: false
    capacity_bytes: {{assumed: 8589934592}}
    bandwidth_bytes_per_s: {{assumed: 2.0e+10, note: "per core"}}
    transaction_bytes: {{assumed: 64}}
    bandwidth_per_teu_bytes_per_s: {{assumed: 2.0e+10, note: "one core"}}
    saturation_exponent: {{assumed: 4, note: "cores add up almost linearly until the channels are full"}}
    latency_s: {{assumed: 9.0e-8}}
"""


@lru_cache(maxsize=8)
def generic_profile(name: str) -> DeviceSpec:
    """Return the assumed one-core profile of an instruction set.

    >>> spec = generic_profile("cpu-avx2")
    >>> spec.teu.lanes, spec.limits.usable_vector_registers
    (8, 13)
    """
    known = _SETS.get(name)
    if known is None:
        raise SpecError(f"profile '{name}': expected one of {sorted(_SETS)}. Pass the path of a YAML of your own.")
    lanes, vector = known.lanes, 4 * known.lanes
    cycle = 1.0 / _CLOCK_HZ
    usable = known.registers - _OPERAND_REGISTERS[known.registers]
    text = _TEXT.format(
        name=name, mcpu=known.mcpu, mtriple=known.mtriple and f", mtriple: {known.mtriple}", clock=_CLOCK_HZ,
        lanes=lanes, pair=2 * lanes, special=lanes / 8, issue=4 * lanes, c1=cycle, c4=4 * cycle, barrier=4.5 * cycle,
        copy=0.22 * cycle, gather=0.55 * cycle, registers=known.registers, usable=usable,
        register_bytes=known.registers * vector,
        usable_bytes=usable * vector, registers_per_s=12 * 2 * lanes * _CLOCK_HZ, vector=vector,
        l1=2 * vector * _CLOCK_HZ, l2=vector * _CLOCK_HZ,
    )  # fmt: skip
    return parse_spec(text, f"generic {name}")
