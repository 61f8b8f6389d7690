"""The native runner, a library that runs the steps of a model, and its functions."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass, field
from typing import Any

from roller_runtime.core.temporary_folders import ScratchLibraries
from roller_runtime.cpu.tvm_libraries import TvmLibraries, load_tvm_libraries
from roller_runtime.errors import LaunchError


class _PythonErrorHooks(ctypes.Structure):
    _fields_ = (("take_error", ctypes.c_void_p), ("drop", ctypes.c_void_p))


class FrameStruct(ctypes.Structure):
    """The structure ``Frame`` of native_runner.c."""

    _fields_ = (
        ("steps", ctypes.c_void_p), ("lanes", ctypes.c_void_p), ("arguments", ctypes.c_void_p),
        ("tensors", ctypes.c_void_p), ("patches", ctypes.c_void_p), ("patch_count", ctypes.c_int64),
        ("arrays", ctypes.c_void_p), ("seconds", ctypes.c_void_p), ("hooks", ctypes.c_void_p),
        ("threads", ctypes.c_int64), ("error", ctypes.c_void_p), ("failed_step", ctypes.c_int64),
    )  # fmt: skip


@dataclass(frozen=True)
class Runner:
    """The loaded library.

    Parameters
    ----------
    image
        Bytes of the library, for saved models.
    point, run, use_threads
        Functions that point tensors at the caller's arrays, run steps, and set the thread count for kernels that this
        thread calls directly.
    launch
        Address of the function with which kernels run tasks on several threads.
    libraries, hooks
        TVM's runtime, and those of its functions that the library calls.
    gathers
        Whether the library runs gathers; libraries in models saved by earlier versions do not.
    """

    image: bytes = field(repr=False)
    point: Any
    run: Any
    use_threads: Any
    launch: int
    libraries: TvmLibraries = field(repr=False)
    hooks: _PythonErrorHooks = field(repr=False)
    gathers: bool = True

    def take_error_text(self, frame: FrameStruct) -> str:
        """Return the text of a frame's error and release the error."""
        error = frame.error
        frame.error = None
        return self.libraries.take_error_text(error)


@functools.cache
def load_runner(image: bytes) -> Runner:
    """Load the runner from the bytes of its library."""
    libraries = load_tvm_libraries()
    names = ("TVMFFIErrorMoveFromRaised", "TVMFFIObjectDecRef")
    with ScratchLibraries() as scratch:
        path = scratch.write(image, "the native runner", "runner")
        try:
            hooks = _PythonErrorHooks(*(ctypes.cast(getattr(libraries.ffi, n), ctypes.c_void_p) for n in names))
            loaded = ctypes.CDLL(str(path))
            point, run, use = loaded.roller_point, loaded.roller_run, loaded.roller_use_threads
            launch = ctypes.cast(loaded.roller_launch, ctypes.c_void_p).value or 0
        except (OSError, AttributeError) as err:
            raise LaunchError(f"the native runner: cannot load it ({err}). Save the model on this machine.") from err
    point.argtypes, point.restype = (ctypes.c_void_p,), None
    run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64), ctypes.c_int
    use.argtypes, use.restype = (ctypes.c_int,), None
    return Runner(image, point, run, use, launch, libraries, hooks, hasattr(loaded, "roller_runs_gathers"))
