"""Run a CPU KernelArtifact on NumPy or any DLPack arrays, without TVM's compiler.

The shared library needs TVM's small runtime (threads, workspaces): it is found by package metadata
and loaded globally, and ``tvm`` itself is never imported (0.2 s to the first result in a fresh
process, a few microseconds per call).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.cpu import threads
from roller.backends.dtypes import numpy_dtype
from roller.errors import LaunchError
from roller.expr import Tensor

_RUNTIME = "libtvm_runtime.so"
#: Kinds of NumPy's own numbers, which DLPack carries; bfloat16 of ml_dtypes is of kind "V".
_PLAIN_KINDS = frozenset("fiub")


@functools.cache
def runtime() -> Any:
    """Load TVM's runtime library once and return the ``tvm_ffi`` module.

    Raises
    ------
    LaunchError
        Where ``tvm_ffi`` or the runtime library is not installed.
    """
    try:
        import tvm_ffi
    except ImportError as err:
        raise LaunchError(
            f"CPU launcher: expected the package 'apache-tvm-ffi', got {err}. Install roller with its 'cpu' extra."
        ) from err
    path = _find_runtime()
    threads.prepare()
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as err:
        raise LaunchError(f"CPU launcher: cannot load {path.name} ({err}). Reinstall apache-tvm.") from err
    return tvm_ffi


def _find_runtime() -> Path:
    spec = importlib.util.find_spec("tvm")  # finds the package, does not import it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        for folder in (Path(place, "lib"), Path(place)):
            if (folder / _RUNTIME).is_file():
                return folder / _RUNTIME
    raise LaunchError(
        f"CPU launcher: expected {_RUNTIME} of the package 'apache-tvm', found it in none of {places}. "
        "Install apache-tvm."
    )


class _Interface:
    """Memory of a read-only array, offered as writable: kernels never write their inputs."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


class CpuKernel:
    """A loaded CPU kernel.

    Calls are re-entrant: workspaces belong to a call, so several threads may call one kernel.

    Parameters
    ----------
    artifact
        An artifact of language ``"llvm"`` that carries its library.

    Raises
    ------
    LaunchError
        Where the artifact is for another backend, was not built, or cannot be loaded here.
    """

    def __init__(self, artifact: KernelArtifact) -> None:
        if artifact.language != "llvm":
            raise LaunchError(
                f"CPU launcher: expected an artifact of language 'llvm', got '{artifact.language}'. "
                "Load it with the backend it was compiled for."
            )
        if artifact.binary is None:
            raise LaunchError("CPU launcher: the artifact carries no binary. Build it before launching.")
        self.artifact = artifact
        self.cores = int(artifact.target.get("cores", 1))
        self._module, self._function = _load(artifact.binary, artifact.launches[0].entry)
        self._inputs = [_Slot(t, a.shape) for t, a in zip(artifact.expression.inputs, artifact.inputs, strict=True)]
        outputs = artifact.expression.output_tensors
        self._outputs = [_Slot(t, a.shape) for t, a in zip(outputs, artifact.outputs, strict=True)]
        self._from_dlpack = runtime().from_dlpack

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run the kernel.

        Parameters
        ----------
        arrays
            One array per input of the artifact's expression, in order: NumPy, or anything with
            ``__dlpack__`` in host memory (zero-copy). Strided inputs are copied.
        out
            Array (or sequence of arrays, one per output) to write into; made when ``None``.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The output, or a tuple where the expression has several; ``out`` itself where given.

        Raises
        ------
        LaunchError
            Where count, shape or dtype of an array differ from the expression, or ``out`` is not a
            writable contiguous array apart from the inputs.
        """
        run, result = self._bind(arrays, out)
        run()
        return result

    def bind(self, *arrays: Any, out: Any = None) -> tuple[Callable[[], None], Any]:
        """Check the arrays once and return ``(run, outputs)``: each ``run()`` is one bare kernel call."""
        return self._bind(arrays, out)

    def _bind(self, arrays: Sequence[Any], out: Any) -> tuple[Callable[[], None], Any]:
        name = self.artifact.expression.name
        if len(arrays) != len(self._inputs):
            wanted = ", ".join(s.name for s in self._inputs)
            raise LaunchError(f"{name}: expected {len(self._inputs)} arrays ({wanted}), got {len(arrays)}.")
        inputs = [s.input(a, name) for s, a in zip(self._inputs, arrays, strict=True)]
        outputs, result = self._results(out, inputs)
        views = [self._from_dlpack(_bits(a)) for a in (*inputs, *outputs)]
        return _Run(self._module, self._function, views, self.cores), result

    def _results(self, out: Any, inputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], Any]:
        if out is None:
            made = [np.empty(s.shape, s.dtype) for s in self._outputs]
            views = [a if s.same else a.reshape(s.kernel_shape) for s, a in zip(self._outputs, made, strict=True)]
            return views, made[0] if len(made) == 1 else tuple(made)
        name = self.artifact.expression.name
        given = [out] if len(self._outputs) == 1 and not isinstance(out, (tuple, list)) else list(out)
        if len(given) != len(self._outputs):
            raise LaunchError(f"{name}: argument 'out': expected {len(self._outputs)} arrays, got {len(given)}.")
        views = [s.output(a, name) for s, a in zip(self._outputs, given, strict=True)]
        for i, (slot, view) in enumerate(zip(self._outputs, views, strict=True)):
            others = [*zip(self._inputs, inputs, strict=True), *zip(self._outputs[:i], views[:i], strict=True)]
            for other, a in others:
                if np.may_share_memory(view, a):
                    raise LaunchError(
                        f"{name}: argument 'out': '{slot.name}' overlaps '{other.name}' in memory. "
                        "Pass an array of its own."
                    )
        return views, out


class _Run:
    """One bare call; keeps the library and the arrays' views alive."""

    __slots__ = ("cores", "function", "module", "views")

    def __init__(self, module: Any, function: Any, views: list[Any], cores: int) -> None:
        self.module, self.function, self.views, self.cores = module, function, views, cores

    def __call__(self) -> None:
        pool = threads.pool(_runtime_of_pools)
        if pool.cores != self.cores:
            pool.use(self.cores)
        pool.part()
        self.function(*self.views)


class _Slot:
    """One argument: what the caller's array must look like, and its view for the kernel."""

    def __init__(self, tensor: Tensor, kernel_shape: tuple[int, ...]) -> None:
        self.name, self.shape = tensor.name, tensor.shape
        self.dtype = numpy_dtype(tensor.dtype)
        self.kernel_shape = kernel_shape or (1,)
        self.same = self.kernel_shape == self.shape
        if math.prod(self.kernel_shape) != math.prod(self.shape):
            raise LaunchError(f"'{self.name}': kernel shape {kernel_shape} does not hold the elements of {self.shape}.")

    def _array(self, value: Any, where: str) -> np.ndarray:
        array = value if isinstance(value, np.ndarray) else _as_numpy(value, where, self.name)
        if array.shape != self.shape:
            raise LaunchError(
                f"{where}: argument '{self.name}': expected shape {self.shape}, got {array.shape}. "
                "Reshape the array or compile for its shape."
            )
        if array.dtype != self.dtype:
            raise LaunchError(
                f"{where}: argument '{self.name}': expected dtype {self.dtype}, got {array.dtype}. "
                f"Convert it with .astype('{self.dtype}')."
            )
        return array

    def input(self, value: Any, where: str) -> np.ndarray:
        """Return a contiguous view (or copy) of an input in the kernel's shape."""
        array = self._array(value, where)
        flags = array.flags
        if not (flags.c_contiguous and flags.aligned):
            array = np.array(array, order="C")
        elif not flags.writeable:
            array = np.asarray(_Interface(array))
        return array if self.same else array.reshape(self.kernel_shape)

    def output(self, value: Any, where: str) -> np.ndarray:
        """Return the view of a caller's output array in the kernel's shape."""
        array = self._array(value, f"{where}: argument 'out'")
        flags = array.flags
        for held, wanted in ((flags.writeable, "writable"), (flags.c_contiguous, "C-contiguous"),
                             (flags.aligned, "aligned to its elements")):  # fmt: skip
            if not held:
                raise LaunchError(
                    f"{where}: argument 'out': '{self.name}': expected a {wanted} array, got one that is not. "
                    "Pass numpy.empty(shape, dtype), or leave 'out' away."
                )
        return array if self.same else array.reshape(self.kernel_shape)


def _bits(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 arrays as their bits, as their kernels take them; others as they are."""
    return array if array.dtype.kind in _PLAIN_KINDS else array.view(np.uint16)


def _as_numpy(value: Any, where: str, name: str) -> np.ndarray:
    if not hasattr(value, "__dlpack__"):
        raise LaunchError(
            f"{where}: argument '{name}': expected a NumPy or DLPack array, got {type(value).__name__}. "
            "Convert it with numpy.asarray."
        )
    try:
        return np.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError, ValueError) as err:
        raise LaunchError(
            f"{where}: argument '{name}': cannot view {type(value).__name__} as host memory ({err}). "
            "Move it to the CPU and detach it."
        ) from err


def _load(binary: bytes, entry: str) -> tuple[Any, Any]:
    """Load a library from memory; its temporary file is gone when this returns."""
    ffi = runtime()
    with tempfile.TemporaryDirectory(prefix="roller-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(binary)
        try:
            module = ffi.load_module(str(path))
            return module, module[entry]
        except Exception as err:  # the loader's errors share no base class; the cause stays chained
            raise LaunchError(
                f"CPU launcher: cannot load the kernel's library ({err}). Compile it on this machine."
            ) from err


def _runtime_of_pools() -> tuple[ctypes.CDLL, Any]:
    """Return TVM's runtime library and its function that sets a pool's size."""
    configure = runtime().get_global_func("runtime.config_threadpool", allow_missing=True)
    return ctypes.CDLL(str(_find_runtime())), configure
