"""Probes of a CPU: C kernels on threads, each of which is bound to a core of its own."""

from roller.probing.cpu.probes import PROBES
from roller.probing.cpu.session import CpuSession

__all__ = ["PROBES", "CpuSession"]
