"""CPU backend: launches kernels without TVM's compiler."""

from roller.backends.cpu.launcher import CpuKernel

__all__ = ["CpuKernel"]
