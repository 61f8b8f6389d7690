"""Arrays and workspaces between protected pages, so that an access outside them faults at once.

A comparison of values cannot detect a read beyond an array: the memory there is usually mapped, and the value is often
discarded. Candidates run in a forked child; if the child dies of a fault, this is the reason why the
candidate fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import logging
import math
import mmap
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import TypeVar

import numpy as np

from roller.backends.cpu.launcher import CpuKernel
from roller.backends.cpu.run_once_on_given_memory import ArgumentAllocator, run_once_on_allocated_memory
from roller.errors import RollerError
from roller.runtime.defer_interrupts import interrupts_deferred
from roller.runtime.guarded_workspaces import guard_workspaces, load_guard
from roller.runtime.run_in_new_thread import run_in_new_thread
from roller_runtime.core.dtypes import DTYPE_BYTES
from roller_runtime.core.gc_pause import gc_paused
from roller_runtime.cpu.threads import forking_without_workers

K = TypeVar("K")
_LOG = logging.getLogger("roller")

#: Whether this system can protect pages and fork; otherwise this check is skipped.
AVAILABLE = sys.platform.startswith("linux")
#: Time per kernel, in seconds, after which a child counts as hanging; far longer than any slow run.
_PATIENT_S = 600.0
_POLL_S = 0.0005
#: Values of ``at_end``: arrays end at a protected page, or begin after one.
_ENDS = (True, False)
_SLOWEST_POLL_S = 0.05
#: ``SIGABRT``: a kernel changed unused bytes beside a workspace, or the C library found such a change on the heap.
_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
#: Linux's ``PROT_NONE``, which :mod:`mmap` does not define.
_PROTECT_NONE = 0


def allocate_between_guard_pages(
    shape: tuple[int, ...], dtype: np.dtype, alignment_bytes: int, *, at_end: bool
) -> np.ndarray:
    """Return an array of zeros with a protected page before and after its memory.

    Examples
    --------
    >>> a = allocate_between_guard_pages((3, 5), np.dtype("float32"), 4, at_end=True)
    >>> (a.ctypes.data + a.nbytes) % mmap.PAGESIZE, float(a.sum())
    (0, 0.0)
    """
    # Pages take memory only when written: reads use the system's zero page. Freeing the array lifts the protection.
    page = mmap.PAGESIZE
    size = math.prod(shape) * dtype.itemsize
    inside = -(-size // page) * page
    block = _map_private_zeros(inside + 2 * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(block))
    libc = ctypes.CDLL(None, use_errno=True)
    for address in (first, first + page + inside):
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), _PROTECT_NONE):
            raise OSError(ctypes.get_errno(), "mprotect: cannot protect a page")
    start = page + ((inside - size) // alignment_bytes * alignment_bytes if at_end else 0)
    return np.frombuffer(block, np.uint8, size, start).view(dtype).reshape(shape)


def _allocate_with_slack(shape: tuple[int, ...], dtype: np.dtype, slack_bytes: int) -> np.ndarray:
    """Return an array of zeros with unused memory on both sides, so that accesses outside it do not fault."""
    slack_bytes = -(-slack_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    size = math.prod(shape) * dtype.itemsize
    return (
        np.frombuffer(_map_private_zeros(size + 2 * slack_bytes), np.uint8, size, slack_bytes)
        .view(dtype)
        .reshape(shape)
    )


def _map_private_zeros(size_bytes: int) -> mmap.mmap:
    """Map private memory; in shared memory, pages that are only read would occupy memory too."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return mmap.mmap(-1, size_bytes, flags=flags)


def find_out_of_bounds_access(kernel: CpuKernel) -> str | None:
    """Run a kernel between protected pages in a child process; return a description of its fault, or ``None``."""
    # Addresses depend on no data, so the inputs are zeros, which take no memory. Both placements run in one child,
    # because forking a process that has loaded TVM costs more than most kernels.
    if not kernels_with_bad_accesses({0: kernel}):
        return None
    names = frozenset(a.name for a in kernel.artifact.arguments)
    # Only after a fault, find the argument and the side by separate runs for the message.
    for at_end in _ENDS:
        where = "beyond the end" if at_end else "before the start"
        died = _fault_in_child([(kernel, frozenset())], (at_end,))
        if died is not None:
            where = "outside" if died == signal.SIGABRT.name else f"{where} of"  # a change does not show its side
            return f"it accesses memory {where} a workspace: beside a protected page its process ended by {died}"
        died = _fault_in_child([(kernel, names)], (at_end,), workspaces=False)
        if died is not None:
            culprits = sorted(n for n in names if _fault_in_child([(kernel, frozenset({n}))], (at_end,)) is not None)
            what = ", ".join(f"'{n}'" for n in culprits) or "an argument"
            return f"it accesses memory {where} of {what}: beside a protected page its process ended by {died}"
    return (
        "it accesses memory outside its arguments and workspaces: beside protected pages its process ended by a fault"
    )


def kernels_with_bad_accesses(kernels: Mapping[K, CpuKernel]) -> list[K]:
    """Return the keys of kernels that fault between guard pages; run all in one child, singly only after a fault."""
    if not AVAILABLE or not kernels:
        return []
    everything = [(k, frozenset(a.name for a in k.artifact.arguments)) for k in kernels.values()]
    if _fault_in_child(everything, _ENDS) is None:
        return []
    if len(kernels) == 1:
        return list(kernels)
    return [name for name, one in zip(kernels, everything, strict=True) if _fault_in_child([one], _ENDS) is not None]


def _fault_in_child(
    kernels: Sequence[tuple[CpuKernel, Set[str]]], ends: Sequence[bool], *, workspaces: bool = True
) -> str | None:
    """Run kernels in a child with named arguments next to guard pages; return the signal of a fault, or ``None``."""
    workspaces = workspaces and any(kernel.runtime_pointers for kernel, _ in kernels) and _guard_is_available()
    runs = [
        (kernel, partial(_allocate_argument, kernel, between, at_end=e), e if workspaces else None)
        for kernel, between in kernels for e in ends
    ]  # fmt: skip
    with contextlib.ExitStack() as ended:
        with interrupts_deferred():  # an interrupt is raised after the child's cleanup is registered
            with warnings.catch_warnings(), gc_paused(), forking_without_workers():
                # Python warns of forking with threads; the kernel is loaded, and the child uses no lock except its
                # allocator's.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _run_in_child_and_exit(runs)
            ended.callback(_kill_and_reap, child)
        return _wait_for_fault(child, len(kernels) * _PATIENT_S)


@functools.cache
def _guard_is_available() -> bool:
    """Load the allocator of workspaces before a fork; without a C compiler, only accesses to arguments are checked."""
    try:
        load_guard()
    except RollerError as err:
        _LOG.warning("the workspaces of kernels are not checked: %s", err)
        return False
    return True


def _allocate_argument(
    kernel: CpuKernel, between: Set[str], name: str, shape: tuple[int, ...], dtype: np.dtype, alignment_bytes: int, *,
    at_end: bool,
) -> np.ndarray:  # fmt: skip
    """Allocate an argument: next to a protected page if it is named, otherwise with unused memory around it."""
    if name in between:
        return allocate_between_guard_pages(shape, dtype, alignment_bytes, at_end=at_end)
    slack_bytes = max(math.prod(a.shape) * DTYPE_BYTES[a.dtype] for a in kernel.artifact.arguments)
    return _allocate_with_slack(shape, dtype, slack_bytes)


def _run_in_child_and_exit(runs: Sequence[tuple[CpuKernel, ArgumentAllocator, bool | None]]) -> None:
    """Run kernels in each placement of arguments and workspaces; exit without the parent's cleanup."""
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the C library says why it aborts; the signal is the result
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in _FAULTS:  # remove handlers that print a trace; the signal itself is the result
            signal.signal(number, signal.SIG_DFL)
        run_in_new_thread(partial(_run_all, runs))
    finally:
        os._exit(0)


def _run_all(runs: Sequence[tuple[CpuKernel, ArgumentAllocator, bool | None]]) -> None:
    for kernel, place, workspaces_at_end in runs:
        if workspaces_at_end is not None:
            guard_workspaces(kernel.runtime_pointers, at_end=workspaces_at_end)
        with contextlib.suppress(Exception):  # an exception is no evidence about memory accesses
            run_once_on_allocated_memory(kernel, place)


def _wait_for_fault(child: int, patient_s: float) -> str | None:
    """Wait for a child; return the signal of a fault, or ``None`` for other exits and timeouts, which prove nothing."""
    give_up, pause_s = time.monotonic() + patient_s, _POLL_S
    _wait_for_exit(child, patient_s)
    # The child is not reaped here: until _kill_and_reap does so, its process id cannot be reused.
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (found := os.waitid(os.P_PID, child, how)) is None and time.monotonic() < give_up:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _SLOWEST_POLL_S)
    if found is None or found.si_code not in (os.CLD_KILLED, os.CLD_DUMPED) or found.si_status not in _FAULTS:
        return None
    return signal.Signals(found.si_status).name


def _wait_for_exit(child: int, patient_s: float) -> None:
    """Wait for the exit of a child or a timeout; return at once if the system has no pidfd."""
    opened = getattr(os, "pidfd_open", None)  # not in a Python built for a Linux before 5.3
    if opened is None:
        return
    with contextlib.suppress(OSError):  # Linux before 5.3
        handle = opened(child)
        try:
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(1e3 * patient_s)
        finally:
            os.close(handle)


def _kill_and_reap(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # may be reaped elsewhere
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
