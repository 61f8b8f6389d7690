"""Probes of a CPU: C kernels on threads that are bound to one processor per core."""

from roller.probing.cpu.probes import PROBES
from roller.probing.cpu.session import CpuSession

__all__ = ["PROBES", "CpuSession"]
