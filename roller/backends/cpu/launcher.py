"""Runs a CPU KernelArtifact on NumPy arrays or any DLPack arrays, without TVM's compiler.

The shared library needs TVM's runtime (``tvm_runtime.py``). A call takes microseconds.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.constant_inputs import constant_arrays
from roller.backends.cpu.tvm_runtime import load_tvm_ffi
from roller.backends.refuse_unknown_options import refuse_unknown_options
from roller.errors import LaunchError, counted
from roller.targets import check_language
from roller_runtime.core.temporary_folders import scratch_folder
from roller_runtime.cpu import threads
from roller_runtime.cpu.check_caller_arrays import ArgumentSlot, WritableView
from roller_runtime.cpu.feature_check import check_features
from roller_runtime.cpu.tvm_libraries import runtime_and_pool_resizer

#: Alignment of panels in bytes, as code generation declares it.
LINE_BYTES = 64
#: Maximum number of copies of the constants to rotate over; for constants of a few KiB, making more takes longer than
#: timing.
_MOST_COPIES = 1024
#: Pointers in a kernel's library to the functions that allocate and free its workspaces.
RUNTIME_POINTERS = ("__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace")
_NDARRAY = np.ndarray


class CpuKernel:
    """Loaded CPU kernel; calls are re-entrant because each call has its own workspaces.

    Raises
    ------
    LaunchError
        If the artifact is for another backend, was not built, or cannot be loaded here.
    """

    def __init__(self, artifact: KernelArtifact) -> None:
        remedy = "Load it with the launcher of its own target."
        check_language(artifact.language, ["llvm"], "CPU launcher", LaunchError, remedy)
        if artifact.binary is None:
            raise LaunchError(
                f"{artifact.expression.name}: expected a built kernel, got the source of one for {artifact.device}, "
                "whose machines are of another architecture than the one it was compiled on. Compile it there."
            )
        check_features(artifact.expression.name, artifact.target.get("features", ()))
        self.artifact = artifact
        self.cores = int(artifact.target.get("cores", 1))
        #: Number of threads to prepare before a call; 0 for a kernel without parallel loops.
        self._threads = (
            min(self.cores, threads.count_simultaneous_threads()) if artifact.target.get("parallel", True) else 0
        )
        #: TVM's module, and the addresses of its library's pointers to TVM's runtime, by name.
        self.module, self.runtime_pointers = _load_library(artifact.binary)
        self._function = self.module[artifact.launches[0].entry]
        constants = constant_arrays(artifact)
        self._inputs, self._outputs = _input_and_output_slots(artifact)
        self._from_dlpack = load_tvm_ffi().from_dlpack
        #: Arguments that follow the caller's arrays in every call: constants, and panels packed from them here.
        self._held_arrays = self._prepared(constants) if constants else ()
        self._held = (*map(self._view, self._held_arrays), *self._sizes(artifact))

    def reshaped(self, artifact: KernelArtifact) -> CpuKernel:
        """Return a kernel for the shapes of ``artifact`` that shares this one's library, constants and panels."""
        other = copy.copy(self)
        other.artifact = artifact
        other._inputs, other._outputs = _input_and_output_slots(artifact)
        other._held = (*map(self._view, self._held_arrays), *self._sizes(artifact))
        return other

    def _sizes(self, artifact: KernelArtifact) -> list[Any]:
        """Return a call's size arguments: arrays whose extent is a dynamic size and whose contents are not read."""
        return [self._view(np.empty(a.shape, a.dtype)) for a in artifact.arguments if a.role == "size"]

    def _prepared(self, constants: dict[int, np.ndarray]) -> tuple[np.ndarray, ...]:
        """Pack the constants; return constants and panels in the kernel's argument order."""
        artifact = self.artifact
        arrays = {artifact.inputs[n].name: c.reshape(artifact.inputs[n].shape or (1,)) for n, c in constants.items()}
        panels = {a.name: _allocate_aligned(a.shape, a.dtype) for a in artifact.arguments if a.role == "panel"}
        held = {**arrays, **panels}
        if artifact.prepare is not None:
            pack = self.module[artifact.prepare.entry]
            _BoundCall(self.module, pack, [self._view(held[n]) for n in artifact.prepare.arguments], self.cores)()
        return tuple(held[n] for n in artifact.launches[0].arguments if n in held)

    def _view(self, array: np.ndarray) -> Any:
        return self._from_dlpack(np.asarray(WritableView(array)))

    def __call__(self, *arrays: Any, out: Any = None, **options: Any) -> Any:
        """Run the kernel."""
        if options:
            remedy = "A CPU kernel has no stream: the call returns when the result is there."
            refuse_unknown_options(self.artifact.expression.name, "CPU", options, ("out",), remedy)
        views, result = self._views(arrays, out)
        if self._threads:
            threads.prepare_pool_for_kernel(self._threads, runtime_and_pool_resizer)
        self._function(*views, *self._held)
        return result

    def bind(self, *arrays: Any, out: Any = None, rotating_bytes: int = 0) -> tuple[Callable[[], None], Any]:
        """Check the arrays once; return ``(run, outputs)``, where ``run()`` calls the kernel once without checks."""
        views, result = self._views(arrays, out)
        # With rotating_bytes, runs rotate over copies of constants and panels of this total size, so that a smaller
        # cache cannot hold them. The views keep the arrays' memory alive.
        bound = [self._from_dlpack(v) for v in views]
        sizes = self._held[len(self._held_arrays) :]
        runs = [
            _BoundCall(self.module, self._function, [*bound, *held], self._threads)
            for held in (self._held, *((*c, *sizes) for c in self._copies(rotating_bytes)))
        ]
        return (runs[0] if len(runs) == 1 else _RotatingCall(runs)), result

    def _copies(self, total_bytes: int) -> list[tuple[Any, ...]]:
        """Return additional copies of constants and panels; with the originals, they occupy about ``total_bytes``."""
        own_bytes = sum(a.nbytes for a in self._held_arrays)
        count = max(1, min(_MOST_COPIES, math.ceil(total_bytes / own_bytes))) - 1 if own_bytes else 0
        copies = [map(self._view, _copy_aligned(a, count)) for a in self._held_arrays]  # views keep them alive
        return list(zip(*copies, strict=True))

    def _views(self, arrays: Sequence[Any], out: Any) -> tuple[list[np.ndarray], Any]:
        """Return the checked arguments in the kernel's form, and the result for the caller."""
        # Hot path of every call: no generators, one pass, one check for an array that needs no conversion.
        slots = self._inputs
        name = self.artifact.expression.name
        if len(arrays) != len(slots):
            wanted = ", ".join(s.name for s in slots)
            raise LaunchError(f"{name}: expected {counted(len(slots), 'array')} ({wanted}), got {len(arrays)}.")
        views = []
        for i, slot in enumerate(slots):
            array = arrays[i]
            # "carray": C-contiguous, aligned to its elements and writable.
            fits = type(array) is _NDARRAY and array.dtype is slot.dtype and array.shape == slot.shape
            if not (fits and array.flags.carray):
                array = slot.input(array, name)
            views.append(slot.view(array) if slot.viewed else array)
        if out is None:
            made = [np.empty(s.shape, s.dtype) for s in self._outputs]
            for i, slot in enumerate(self._outputs):
                views.append(slot.view(made[i]) if slot.viewed else made[i])
            return views, made[0] if len(made) == 1 else tuple(made)
        self._append_output_views(out, views, name)
        return views, out

    def _append_output_views(self, out: Any, views: list[np.ndarray], name: str) -> None:
        """Append the views of the caller's output arrays; raise an error if one overlaps another argument."""
        outputs = self._outputs
        given = (out,) if len(outputs) == 1 and not isinstance(out, (tuple, list)) else out
        if not isinstance(given, (tuple, list)) or len(given) != len(outputs):
            got = len(given) if isinstance(given, (tuple, list)) else f"one {type(out).__name__}"
            raise LaunchError(f"{name}: argument 'out': expected {counted(len(outputs), 'array')}, got {got}.")
        for n, slot in enumerate(outputs):
            array = given[n]
            fits = type(array) is _NDARRAY and array.dtype is slot.dtype and array.shape == slot.shape
            if not (fits and array.flags.carray):
                array = slot.output(array, name)
            view = slot.view(array) if slot.viewed else array
            for i, other in enumerate(views):
                if np.may_share_memory(view, other):
                    raise LaunchError(
                        f"{name}: argument 'out': '{slot.name}' overlaps '{(*self._inputs, *outputs)[i].name}' in "
                        "memory. Pass an array of its own."
                    )
            views.append(view)


class _BoundCall:
    """Kernel call without checks; it keeps the library and the views alive."""

    __slots__ = ("function", "module", "threads", "views")

    def __init__(self, module: Any, function: Any, views: list[Any], count: int) -> None:
        self.module, self.function, self.views, self.threads = module, function, views, count

    def __call__(self) -> None:
        if self.threads:
            threads.prepare_pool_for_kernel(self.threads, runtime_and_pool_resizer)
        self.function(*self.views)


class _RotatingCall:
    """Callable that makes the next of several equivalent calls each time, in rotation."""

    __slots__ = ("_next",)

    def __init__(self, runs: Sequence[_BoundCall]) -> None:
        self._next = itertools.cycle(runs).__next__

    def __call__(self) -> None:
        self._next()()


def _allocate_aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return an uninitialized array that starts at a cache-line boundary."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % LINE_BYTES
    return raw[start : start + size].view(dtype).reshape(shape)


def _copy_aligned(array: np.ndarray, count: int) -> list[np.ndarray]:
    """Return ``count`` copies of ``array``, each of which starts at a cache-line boundary."""
    rows = _allocate_aligned((count, -(-array.nbytes // LINE_BYTES) * LINE_BYTES), "uint8")
    rows[:, : array.nbytes] = array.reshape(-1).view(np.uint8)
    return [row[: array.nbytes].view(array.dtype).reshape(array.shape) for row in rows]


def _load_library(binary: bytes) -> tuple[Any, dict[str, int]]:
    """Load a library from memory through a temporary file; return TVM's module and the pointers to its runtime."""
    ffi = load_tvm_ffi()
    with scratch_folder() as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(binary)
        try:
            return ffi.load_module(str(path)), _find_runtime_pointers(path)
        except Exception as err:  # the loader's errors share no base class; the cause stays chained
            raise LaunchError(
                f"CPU launcher: cannot load the kernel's library ({err}). Compile it on this machine."
            ) from err


def _find_runtime_pointers(path: Path) -> dict[str, int]:
    """Return the addresses of a loaded library's pointers to TVM's functions; they are valid while it is loaded."""
    library, found = ctypes.CDLL(str(path)), {}
    for name in RUNTIME_POINTERS:
        with contextlib.suppress(ValueError):  # the kernel does not call this function
            found[name] = ctypes.addressof(ctypes.c_void_p.in_dll(library, name))
    ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))  # only TVM's module keeps it loaded
    return found


def _input_and_output_slots(artifact: KernelArtifact) -> tuple[list[ArgumentSlot], list[ArgumentSlot]]:
    """Return the slots for the inputs of a call (except constants), and the slots for its outputs."""
    constants = {c.position for c in artifact.constants}
    pairs = zip(artifact.expression.inputs, artifact.inputs, strict=True)
    outputs = zip(artifact.expression.output_tensors, artifact.outputs, strict=True)
    taken = [ArgumentSlot(t, a.shape) for n, (t, a) in enumerate(pairs) if n not in constants]
    return taken, [ArgumentSlot(t, a.shape) for t, a in outputs]
