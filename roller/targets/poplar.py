"""Graphcore IPUs: C++ codelets, and an exchange schedule as data; no vendor toolchain builds them here."""

from __future__ import annotations

from roller.targets.kinds import BSP
from roller.targets.target import Target

TARGET = Target(
    "poplar", BSP, "poplar", required_keys=("arch",), generator="roller.templates.bsp.emit.poplar",
    toolchain="roller.backends.poplar.toolchain", launcher="roller.backends.poplar.launcher:PoplarKernel",
    source_only="no vendor toolchain is driven here: the kernel is codelet source and a schedule, no binary",
    emulator="roller.emulator.codelet_emulator:EmulatedCodelets",
)  # fmt: skip
