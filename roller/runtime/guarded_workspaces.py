"""Workspaces of CPU kernels between protected pages, so that an access outside a workspace ends the process.

A kernel allocates its larger intermediate buffers through pointers in its library. In a process that only checks
kernels, these pointers lead to the functions in ``guarded_workspaces.c``. Workspaces are aligned to 64 bytes: of the
bytes between their end and the next such address, writes are detected, and reads are not.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path

from roller.runtime.session.native_library_build import compile_library, load_or_build_library
from roller_runtime.core.temporary_folders import ScratchLibraries

_SOURCE = Path(__file__).with_name("guarded_workspaces.c")
#: Functions that replace those of TVM, by the name of the pointer in a kernel's library.
_REPLACED = {
    "__TVMBackendAllocWorkspace": "roller_allocate_workspace",
    "__TVMBackendFreeWorkspace": "roller_free_workspace",
}


def guard_workspaces(pointers: Mapping[str, int], *, at_end: bool) -> None:
    """Place the workspaces of a kernel's library so that they end at a protected page, or begin after one."""
    guard = load_guard()
    ctypes.c_int.in_dll(guard, "roller_workspaces_end_at_page").value = int(at_end)
    for name, address in pointers.items():
        function = ctypes.cast(getattr(guard, _REPLACED[name]), ctypes.c_void_p)
        ctypes.c_void_p.from_address(address).value = function.value


@functools.cache
def load_guard() -> ctypes.CDLL:
    """Return the library with the allocator.

    Raises
    ------
    BuildError
        If it is not in the cache, and no C compiler can build it.
    LaunchError
        If it cannot be written to a temporary folder.
    """
    image = load_or_build_library((_SOURCE,), functools.partial(compile_library, _SOURCE, "guarded workspaces"))
    with ScratchLibraries() as scratch:
        return ctypes.CDLL(str(scratch.write(image, "guarded workspaces", "guard")))
