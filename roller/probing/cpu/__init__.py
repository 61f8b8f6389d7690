"""Probes of a CPU: C kernels on threads, each of which is bound to a core of its own."""

from roller.probing.cpu.compile_and_run_probes import CpuSession
from roller.probing.cpu.probes import PROBES

__all__ = ["PROBES", "CpuSession"]
