"""Runs a CPU kernel once on memory chosen by the caller, to detect accesses outside its arrays."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from roller.backends.cpu.launcher import LINE_BYTES, CpuKernel
from roller.backends.cpu.tvm_runtime import load_tvm_ffi
from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.cpu import threads
from roller_runtime.cpu.tvm_libraries import runtime_and_pool_resizer


class ArgumentAllocator(Protocol):
    """Allocator for a kernel's arguments."""

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype, alignment_bytes: int) -> np.ndarray:
        """Return an array for the argument ``name``, aligned to ``alignment_bytes``."""
        ...


def run_once_on_allocated_memory(kernel: CpuKernel, place: ArgumentAllocator) -> None:
    """Pack the constants and call the kernel once, with ``place`` as the allocator for each argument."""
    artifact, views = kernel.artifact, {}
    for a in artifact.arguments:
        stored = storage_dtype(a.dtype)
        alignment_bytes = LINE_BYTES if a.role == "panel" else stored.itemsize
        views[a.name] = load_tvm_ffi().from_dlpack(place(a.name, a.shape or (1,), stored, alignment_bytes))
    threads.prepare_pool_for_kernel(kernel.cores, runtime_and_pool_resizer)
    for launch in (*([artifact.prepare] if artifact.prepare else ()), *artifact.launches):
        kernel.module[launch.entry](*(views[n] for n in launch.arguments))
