"""CPU of this machine: LLVM through TVM, linked during lowering and called in this process."""

from __future__ import annotations

from roller.targets.kinds import CPU
from roller.targets.target import Target

TARGET = Target(
    "cpu", CPU, "llvm", required_keys=("mcpu",), optional_keys=("mtriple", "features"),
    generator="roller.templates.cpu.emit.lower_cpu_program", launcher="roller.backends.cpu.launcher:CpuKernel",
)  # fmt: skip
