"""Data required to run a CPU kernel, and the loading of its library."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.temporary_folders import ScratchLibraries
from roller_runtime.cpu.feature_check import check_features
from roller_runtime.cpu.tvm_libraries import SYMBOL, KernelFunction, load_tvm_libraries
from roller_runtime.errors import ArtifactError, LaunchError

#: Symbol of the pointer to the function that runs a library's tasks.
_LAUNCH = "__TVMBackendParallelLaunch"
#: Alignment, in bytes, that generated code assumes for panels and constants.
LINE_BYTES = 64
#: Roles of arguments.
ROLES = ("input", "output", "panel", "size")
#: Size of a huge page in bytes.
_HUGE_BYTES = 1 << 21


@dataclass(frozen=True)
class CallArgument:
    """One argument of a call.

    Parameters
    ----------
    role
        ``"input"``, ``"output"``, ``"panel"``, or ``"size"``, an array whose extent is a dynamic size.
    position
        Index of the run's input or output, or of the kernel's panel.
    shape, dtype
        Shape and dtype as the kernel sees them.
    """

    role: str
    position: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CpuKernelInterface:
    """Interface of a CPU kernel that a session calls, without its program, expression and source.

    Parameters
    ----------
    taken
        Arguments of a call, in order.
    panels
        Arguments that hold packed constants.
    constants
        Positions of the constant inputs.
    prepare
        Function that packs constants, and its arguments; ``None`` if nothing is packed.
    parallel
        Whether a call wakes other threads.
    tasks
        Extents of a call's parallel loops, in order of execution; empty if unknown.
    features
        Processor features that the kernel requires; see :mod:`roller_runtime.core.processor_features_and_count`.
    seconds, bottleneck
        Predicted time, in seconds, and predicted bottleneck.
    """

    name: str
    entry: str
    taken: tuple[CallArgument, ...]
    panels: tuple[Argument, ...] = ()
    constants: tuple[int, ...] = ()
    prepare: tuple[str, tuple[CallArgument, ...]] | None = None
    parallel: bool = False
    tasks: tuple[int, ...] = ()
    features: tuple[str, ...] = ()
    seconds: float = 0.0
    bottleneck: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data."""
        pack = None if self.prepare is None else [self.prepare[0], [_argument_to_list(t) for t in self.prepare[1]]]
        return {
            "name": self.name,
            "entry": self.entry,
            "taken": [_argument_to_list(t) for t in self.taken],
            "panels": [[a.name, list(a.shape), a.dtype] for a in self.panels],
            "constants": list(self.constants),
            "prepare": pack,
            "parallel": self.parallel,
            "tasks": list(self.tasks),
            "features": list(self.features),
            "seconds": self.seconds,
            "bottleneck": self.bottleneck,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CpuKernelInterface:
        """Rebuild from :meth:`to_dict` data; raise ``KeyError``, ``TypeError`` or ``ValueError`` for malformed data."""
        pack = data["prepare"]
        return cls(
            str(data["name"]),
            str(data["entry"]),
            tuple(_argument_from_list(t) for t in data["taken"]),
            tuple(Argument(str(n), "panel", _parse_shape(s), str(d)) for n, s, d in data["panels"]),
            tuple(int(c) for c in data["constants"]),
            None if pack is None else (str(pack[0]), tuple(_argument_from_list(t) for t in pack[1])),
            bool(data["parallel"]),
            _parse_shape(data["tasks"]),
            tuple(str(f) for f in data["features"]),
            float(data["seconds"]),
            str(data["bottleneck"]),
        )


def _argument_to_list(t: CallArgument) -> list[Any]:
    return [t.role, t.position, list(t.shape), t.dtype]


def _argument_from_list(data: Any) -> CallArgument:
    role, position, shape, dtype = data
    if role not in ROLES or not isinstance(position, int) or position < 0:
        raise ValueError(f"argument {data!r}")
    return CallArgument(role, position, _parse_shape(shape), str(dtype))


def _parse_shape(data: Any) -> tuple[int, ...]:
    if not all(type(x) is int and x >= 0 for x in data):
        raise ValueError(f"shape {data!r}")
    return tuple(data)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel whose library is loaded.

    Parameters
    ----------
    call, pack
        Functions that take arrays: the kernel, and the function that packs constants (``None`` if nothing is packed).
    address
        Address of the called function, for the native runner.
    library
        Bytes of the library.
    """

    code: CpuKernelInterface
    call: KernelFunction = field(repr=False)
    pack: KernelFunction | None = field(repr=False)
    address: int
    library: bytes = field(repr=False)


def load_kernel(
    code: CpuKernelInterface, library: bytes, launch: int | None, scratch: ScratchLibraries
) -> LoadedKernel:
    """Load a kernel's library.

    Parameters
    ----------
    launch
        Address of the function that runs its parallel tasks; ``None`` for TVM's.
    scratch
        Where to write the temporary copy of the library.
    """
    check_features(code.name, code.features)
    libraries, path = load_tvm_libraries(), scratch.write(library, code.name)
    try:
        libraries.load_module(path)
        loaded = ctypes.CDLL(str(path))  # the same library
        if launch is not None:
            _redirect_parallel_launch(loaded, launch)
        names = (code.entry, *((code.prepare[0],) if code.prepare is not None else ()))
        addresses = [ctypes.cast(getattr(loaded, SYMBOL + name), ctypes.c_void_p).value or 0 for name in names]
    except (LaunchError, OSError, AttributeError) as err:
        raise LaunchError(f"{code.name}: cannot load its library ({err}). Compile it on this machine.") from err
    functions = [KernelFunction(libraries, address) for address in addresses]
    return LoadedKernel(code, functions[0], functions[1] if code.prepare is not None else None, addresses[0], library)


def _redirect_parallel_launch(library: ctypes.CDLL, launch: int) -> None:
    """Make a library run its tasks through the function at ``launch``; do nothing if it has no parallel loops."""
    try:
        ctypes.c_void_p.in_dll(library, _LAUNCH).value = launch
    except ValueError:
        return


def allocate_aligned(nbytes: int) -> np.ndarray:
    """Return memory aligned to cache lines, in huge pages if it is large and the system has them."""
    # Fresh memory costs a page fault per page: huge pages reduced BERT-Large's page faults from 75,000 to 17,500.
    if nbytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            room = mmap.mmap(-1, nbytes + _HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as err:
            raise MemoryError(f"{nbytes} bytes") from err
        raw = np.frombuffer(room, np.uint8)
        start = -raw.ctypes.data % _HUGE_BYTES
        with contextlib.suppress(OSError):  # kernels without huge pages
            # Whole pages only: a last page beyond the end would waste memory.
            room.madvise(mmap.MADV_HUGEPAGE, start, nbytes // _HUGE_BYTES * _HUGE_BYTES)
        return raw[start : start + nbytes]
    raw = np.empty(nbytes + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + nbytes]


def view_as_argument(array: np.ndarray, taken: CallArgument, where: str) -> np.ndarray:
    """Return an array's memory in the shape and dtype of a kernel argument."""
    dtype = storage_dtype(taken.dtype)
    if array.nbytes != dtype.itemsize * math.prod(taken.shape):
        raise ArtifactError(
            f"{where}: expected {taken.dtype} of shape {taken.shape}, got {array.nbytes} bytes. Compile the model "
            "again."
        )
    if array.dtype == dtype and array.shape == taken.shape and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).view(dtype).reshape(taken.shape)
