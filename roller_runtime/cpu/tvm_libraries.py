"""TVM's runtime libraries (threads and workspaces of kernels), called through their C interface.

The libraries of an installed TVM are used if there are any, because a process must not contain two copies; otherwise
the copies in this package. Neither ``tvm`` nor ``tvm_ffi`` is imported. The layouts of structures come from
``tvm/ffi/c_api.h`` and ``dlpack.h``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from roller_runtime.cpu import threads
from roller_runtime.errors import LaunchError

_FFI, _RUNTIME = "libtvm_ffi.so", "libtvm_runtime.so"
#: Folder of this package's copies.
_COPIES = Path(__file__).resolve().parents[1] / "lib"
#: Prefix of function symbols in a kernel's library.
SYMBOL = "__tvm_ffi_"
#: Layouts of a tensor and of an argument, for arrays that C code reads.
TENSOR = np.dtype([
    ("data", "u8"), ("device_type", "i4"), ("device_id", "i4"), ("ndim", "i4"), ("code", "u1"), ("bits", "u1"),
    ("lanes", "u2"), ("shape", "u8"), ("strides", "u8"), ("byte_offset", "u8"),
])  # fmt: skip
ARGUMENT = np.dtype([("type_index", "i4"), ("padding", "u4"), ("value", "u8")])
#: DLPack type codes by NumPy kind.
TYPE_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
#: Type indices of an integer, a borrowed tensor and a borrowed string; DLPack's device type for the host.
INTEGER, TENSOR_POINTER, STRING = 1, 7, 8
HOST = 1
#: Size in bytes of the header of objects; an error's kind and message follow it.
_HEADER_BYTES = 24


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("size", ctypes.c_size_t))


class _ErrorText(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Argument(ctypes.Structure):
    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64))


@dataclass(frozen=True)
class TvmLibraries:
    """The loaded libraries: ``ffi`` has the C interface, ``runtime`` the functions that kernels call."""

    ffi: ctypes.CDLL = field(repr=False)
    runtime: ctypes.CDLL = field(repr=False)

    def global_function(self, name: str) -> GlobalFunction | None:
        """Return TVM's global function ``name``; ``None`` if it does not exist."""
        found, text = ctypes.c_void_p(), name.encode()
        self.ffi.TVMFFIFunctionGetGlobal(ctypes.byref(_Text(text, len(text))), ctypes.byref(found))
        return GlobalFunction(self, name, found.value) if found.value else None

    def load_module(self, path: Path) -> None:
        """Load a kernel's library and connect it to TVM's runtime; it stays loaded.

        Raises
        ------
        LaunchError
            If it cannot be loaded.
        """
        load = self.global_function("ffi.ModuleLoadFromFile")
        if load is None:
            raise LaunchError("TVM's runtime has no 'ffi.ModuleLoadFromFile'. Install apache-tvm-ffi 0.1.")
        load(str(path))  # the library points to the module that this returns, so that nothing releases it

    def release(self, handle: int) -> None:
        """Release an object."""
        self.ffi.TVMFFIObjectDecRef(ctypes.c_void_p(handle))

    def take_raised_error(self) -> str:
        """Return the text of the calling thread's error and clear it."""
        error = ctypes.c_void_p()
        self.ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
        return self.take_error_text(error.value)

    def take_error_text(self, error: int | None) -> str:
        """Return the text of an error object and release the object."""
        if not error:
            return "no reason was given"
        found = _ErrorText.from_address(error + _HEADER_BYTES + ctypes.sizeof(_ErrorText))
        text = ctypes.string_at(found.data, found.size).decode(errors="replace")
        self.release(error)
        return text


class GlobalFunction:
    """A global function of TVM, called with integers and strings."""

    def __init__(self, libraries: TvmLibraries, name: str, handle: int) -> None:
        self._libraries, self._name, self._handle = libraries, name, ctypes.c_void_p(handle)

    def __call__(self, *values: int | str) -> int:
        """Call the function; return its integer result or the handle of the object that it returns."""
        kept = [v.encode() if isinstance(v, str) else v for v in values]  # lives as long as the call
        arguments = (_Argument * len(kept))()
        for place, value in zip(arguments, kept, strict=True):
            if isinstance(value, bytes):
                place.type_index = STRING
                place.value = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
            else:
                place.type_index, place.value = INTEGER, value
        result = _Argument()
        if self._libraries.ffi.TVMFFIFunctionCall(self._handle, arguments, len(kept), ctypes.byref(result)):
            raise LaunchError(f"TVM's {self._name}: {self._libraries.take_raised_error()}")
        return int(result.value)


class KernelFunction:
    """A function of a kernel's library, called with arrays; it writes its outputs into the last ones."""

    def __init__(self, libraries: TvmLibraries, address: int) -> None:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
        self._libraries, self._function = libraries, prototype(address)

    def __call__(self, *arrays: np.ndarray) -> None:
        """Call the function with C-contiguous arrays in NumPy's own dtypes."""
        tensors, shapes = tensor_table([(a.__array_interface__["data"][0], a.shape, a.dtype) for a in arrays])
        arguments, result = argument_table(tensors), _Argument()
        if self._function(None, arguments.ctypes.data, len(arrays), ctypes.addressof(result)):
            raise LaunchError(self._libraries.take_raised_error())
        del shapes  # the tensors point into it


def tensor_table(rows: Sequence[tuple[int, tuple[int, ...], np.dtype]]) -> tuple[np.ndarray, np.ndarray]:
    """Return tensors of the given data (an address or offset), shapes and dtypes, and the array of all dimensions.

    The tensors point into the array of dimensions, which must outlive them.
    """
    dimensions = np.array([n for _, shape, _ in rows for n in shape] or [0], np.int64)
    tensors = np.zeros(len(rows), TENSOR)
    if rows:  # by columns: a structured array's single elements are slow
        ranks = np.array([len(shape) for _, shape, _ in rows])
        tensors["data"] = [data for data, _, _ in rows]
        tensors["device_type"], tensors["lanes"], tensors["ndim"] = HOST, 1, ranks
        tensors["shape"] = dimensions.ctypes.data + 8 * (np.cumsum(ranks) - ranks)
        # Copies ignore dtypes, so that a dtype without a DLPack code is passed as bytes.
        tensors["code"] = [TYPE_CODES.get(dtype.kind, 1) for _, _, dtype in rows]
        tensors["bits"] = [dtype.itemsize * 8 for _, _, dtype in rows]
    return tensors, dimensions


def argument_table(tensors: np.ndarray) -> np.ndarray:
    """Return the arguments that pass tensors of :func:`tensor_table` to a kernel; they point into ``tensors``."""
    arguments = np.zeros(len(tensors), ARGUMENT)
    arguments["type_index"] = TENSOR_POINTER
    arguments["value"] = tensors.ctypes.data + TENSOR.itemsize * np.arange(len(tensors), dtype=np.uint64)
    return arguments


@functools.cache
def load_tvm_libraries() -> TvmLibraries:
    """Load TVM's libraries once, with global symbols.

    Raises
    ------
    LaunchError
        If they are not found or cannot be loaded.
    """
    ffi, runtime = find_tvm_libraries()
    threads.set_tvm_thread_defaults()
    try:
        # The runtime finds the other library by name, because it is loaded already.
        return TvmLibraries(*(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in (ffi, runtime)))
    except OSError as err:
        raise LaunchError(f"TVM's runtime: cannot load it ({err}). Reinstall roller-runtime or apache-tvm.") from err


def find_tvm_libraries() -> tuple[Path, Path]:
    """Return the paths of both libraries, each from an installed package, or else from this package."""
    places = {_FFI: _library_folders("tvm_ffi"), _RUNTIME: _library_folders("tvm")}
    found = [next((f / n for f in (*several, _COPIES) if (f / n).is_file()), None) for n, several in places.items()]
    ffi, runtime = found
    if ffi is None or runtime is None:
        raise LaunchError(
            f"TVM's runtime: expected {_FFI} and {_RUNTIME} in {_COPIES} or in the packages apache-tvm-ffi and "
            "apache-tvm, found none. If this is a folder of sources, start Python in another folder; otherwise, "
            "install a wheel that 'make dist' built, or apache-tvm."
        )
    return ffi, runtime


def library_folders() -> tuple[Path, ...]:
    """Return the folders of TVM's libraries, for programs in C; see ``include/roller_runtime.h``.

    Raises
    ------
    LaunchError
        If they are not found.
    """
    return tuple(dict.fromkeys(path.parent for path in find_tvm_libraries()))


def include_folder() -> Path:
    """Return the folder of ``roller_runtime.h`` and ``roller_runtime.c``, which run saved models without Python."""
    return Path(__file__).resolve().parents[1] / "include"


def _library_folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)  # finds the package, does not import it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return [folder for place in places for folder in (Path(place, "lib"), Path(place))]


def runtime_and_pool_resizer() -> tuple[ctypes.CDLL, Any]:
    """Return TVM's runtime library and the function that sets the size of a thread pool (``None`` if TVM lacks it)."""
    libraries = load_tvm_libraries()
    return libraries.runtime, libraries.global_function("runtime.config_threadpool")
