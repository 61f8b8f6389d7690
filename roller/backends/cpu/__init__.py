"""CPU backend: launches kernels without TVM's compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roller.backends.cpu.launcher import CpuKernel

__all__ = ["CpuKernel"]


def __getattr__(name: str) -> Any:
    """Load the launcher on first use: sessions of models do not need it."""
    if name == "CpuKernel":
        from roller.backends.cpu.launcher import CpuKernel

        return CpuKernel
    raise AttributeError(name)
