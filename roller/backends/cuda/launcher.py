"""Runs built CUDA artifacts on CuPy, torch or other DLPack arrays, on the caller's stream and usually without copies.

This module is written for the documented interfaces of CuPy 14; tests use a stand-in for CuPy.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from roller.artifact import KernelArtifact
from roller.backends.constant_inputs import constant_arrays, merge_constants
from roller.backends.cuda.cupy_runtime import import_cupy
from roller.backends.cuda.loaded_gpu_module import LoadedImage
from roller.backends.refuse_unknown_options import refuse_unknown_options
from roller.errors import LaunchError, counted
from roller.expr import Tensor
from roller.targets import check_language
from roller_runtime.core.dtypes import DTYPES, as_numpy_bits, storage_dtype
from roller_runtime.core.foreign_array_checks import check_tensor_has_values
from roller_runtime.core.kernel_argument import Argument

#: Alignment in bytes that vector accesses of the kernels need.
_ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class _TensorArgument:
    """Argument of a call: a tensor of the expression and the kernel's argument for it."""

    tensor: Tensor
    argument: Argument


class CudaKernel:
    """Loaded CUDA kernel; calls are re-entrant because each call has its own workspaces and outputs.

    Raises
    ------
    LaunchError
        If the artifact is not built, or CuPy or a device is missing.
    """

    #: Language of the artifacts, and its name in error messages.
    language: ClassVar[str] = "cuda"
    label: ClassVar[str] = "CUDA"

    def __init__(self, artifact: KernelArtifact) -> None:
        remedy = "Load it with the launcher of its own target."
        check_language(artifact.language, [self.language], f"{self.label} launch", LaunchError, remedy)
        if artifact.binary is None:
            raise LaunchError(
                f"{self.label} launch: expected a built '{self.language}' artifact. Build it with its toolchain first."
            )
        self.artifact = artifact
        self._cupy = self._runtime()
        expression = artifact.expression
        self._inputs = [_TensorArgument(t, a) for t, a in zip(expression.inputs, artifact.inputs, strict=True)]
        self._outputs = [
            _TensorArgument(t, a) for t, a in zip(expression.output_tensors, artifact.outputs, strict=True)
        ]
        self._workspaces = [a for a in artifact.arguments if a.role == "workspace"]
        self._modules: dict[int, LoadedImage] = {}
        self._images: dict[int, LoadedImage] = {}
        self._constants = constant_arrays(artifact)
        self._resident: dict[int, tuple[dict[int, Any], dict[str, Any]]] = {}

    def reshaped(self, artifact: KernelArtifact) -> CudaKernel:
        """Return a kernel for the sizes of ``artifact`` that shares this one's images and packed constants."""
        out = type(self)(replace(artifact, binary=self.artifact.binary, build=self.artifact.build))
        out._images, out._resident, out._constants = self._images, self._resident, self._constants
        return out

    def _runtime(self) -> Any:
        return import_cupy()

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **options: Any) -> Any:
        """Run the kernel; return when the work is queued, not when it is done.

        Notes
        -----
        If the stream is not torch's current one, torch tensors, including results, are recorded on it, so that their
        memory is not reused before the kernel is done, even if a tensor is dropped at once.

        The first call on a device loads the kernel, copies constants and waits for the stream, which is not allowed
        while a stream is being captured: make one call before capturing a graph.
        """
        name = self.artifact.expression.name
        refuse_unknown_options(name, self.label, options, ("out", "stream"), "Leave it out.")
        free = [s.tensor.name for n, s in enumerate(self._inputs) if n not in self._constants]
        if len(arrays) != len(free):
            raise LaunchError(f"{name}: expected {counted(len(free), 'array')} ({', '.join(free)}), got {len(arrays)}.")
        torch_device = next((a.device for a in arrays if is_torch_object(a) and a.is_cuda), None)
        with self._current_device_and_stream(stream, torch_device) as (current, device):
            module = self._module(device)
            constants, panels = self._constants_and_panels_on(device, module, current)
            every = merge_constants(arrays, constants) if constants else arrays
            inputs = [self._input(s, a) for s, a in zip(self._inputs, every, strict=True)]
            result = self._made(torch_device) if out is None else _caller_outputs_as_list(out, len(self._outputs))
            if len(result) != len(self._outputs):
                raise LaunchError(f"{name}: 'out': expected {counted(len(self._outputs), 'array')}, got {len(result)}.")
            outputs = [self._output(s, a) for s, a in zip(self._outputs, result, strict=True)]
            self._refuse_overlap(inputs, outputs)
            scratch = [self._cupy.empty(a.shape, storage_dtype(a.dtype)) for a in self._workspaces]
            names = [s.argument.name for s in (*self._inputs, *self._outputs)] + [a.name for a in self._workspaces]
            held = {**dict(zip(names, (*inputs, *outputs, *scratch), strict=True)), **panels}
            module.launch({n: a.data.ptr for n, a in held.items()}, current)
            _record_stream((*arrays, *result), stream, current.ptr)
        if out is not None:
            return out
        return result[0] if len(result) == 1 else tuple(result)

    def _module(self, device: int) -> LoadedImage:
        """Return the kernels loaded on a device; the image is loaded once for all sizes."""
        found = self._modules.get(device)
        if found is None:
            image = self._images.get(device) or self._images.setdefault(device, LoadedImage(self._cupy, self.artifact))
            found = self._modules.setdefault(device, image.reshaped(self.artifact))
        return found

    def _constants_and_panels_on(
        self, device: int, module: LoadedImage, stream: Any
    ) -> tuple[dict[int, Any], dict[str, Any]]:
        """Return the constants and panels on a device; the first call creates them for all streams."""
        if device not in self._resident:
            copied = {n: self._cupy.asarray(a) for n, a in self._constants.items()}
            own = (a for a in self.artifact.arguments if a.role == "panel")
            panels = {a.name: self._cupy.empty(a.shape, storage_dtype(a.dtype)) for a in own}
            named = {self.artifact.inputs[n].name: a for n, a in copied.items()}
            module.prepare({n: a.data.ptr for n, a in (*named.items(), *panels.items())}, stream)
            if copied:
                stream.synchronize()
            self._resident[device] = copied, panels
        return self._resident[device]

    @contextlib.contextmanager
    def _current_device_and_stream(self, stream: Any, torch_device: Any) -> Iterator[tuple[Any, int]]:
        """Make the caller's device and stream current in CuPy, so that DLPack orders the kernel after earlier work."""
        cuda = self._cupy.cuda
        device = torch_device.index if torch_device is not None else cuda.runtime.getDevice()
        if stream is None and torch_device is not None:
            stream = sys.modules["torch"].cuda.current_stream(torch_device)
        with cuda.Device(device), as_cupy_stream(cuda, stream) as current:
            yield current, device

    def _made(self, torch_device: Any) -> list[Any]:
        """Allocate the outputs with the caching allocator of the library that will free them."""
        tensors = [s.tensor for s in self._outputs]
        if torch_device is None:
            return [self._cupy.empty(t.shape, storage_dtype(t.dtype)) for t in tensors]
        torch = sys.modules["torch"]
        return [torch.empty(t.shape, dtype=getattr(torch, t.dtype), device=torch_device) for t in tensors]

    def _view(self, value: Any, slot: _TensorArgument) -> Any:
        """Return a CuPy view of an array after checking its dtype and shape."""
        tensor, where = slot.tensor, f"{self.artifact.expression.name}: argument '{slot.tensor.name}'"
        dtype = str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else type(value).__name__
        shape = tuple(getattr(value, "shape", ()))
        if dtype not in (tensor.dtype, str(storage_dtype(tensor.dtype))) or shape != tensor.shape:
            raise LaunchError(
                f"{where}: expected {tensor.dtype} of shape {tensor.shape}, got {dtype} of {shape}. Convert or reshape."
            )
        return as_cupy_array(self._cupy, value, where)

    def _input(self, slot: _TensorArgument, value: Any) -> Any:
        if type(value).__module__.partition(".")[0] == "numpy":
            bits = as_numpy_bits(value)
            return self._view(self._cupy.asarray(bits), slot)
        view = self._view(value, slot)
        if not view.flags.c_contiguous or view.data.ptr % _ALIGNMENT_BYTES:
            view = view.copy(order="C")
        return view

    def _output(self, slot: _TensorArgument, value: Any) -> Any:
        if type(value).__module__.partition(".")[0] == "numpy":
            raise LaunchError(f"'out': '{slot.tensor.name}': expected an array on the device, got a NumPy array.")
        view = self._view(value, slot)
        if not view.flags.c_contiguous or view.data.ptr % _ALIGNMENT_BYTES:
            raise LaunchError(
                f"'out': '{slot.tensor.name}': expected contiguous memory aligned to {_ALIGNMENT_BYTES} bytes. "
                "Pass an array of its own."
            )
        return view

    def _refuse_overlap(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        for n, y in enumerate(outputs):
            begin, end = y.data.ptr, y.data.ptr + math.prod(y.shape) * y.itemsize
            for x in (*inputs, *outputs[:n]):
                if x.data.ptr < end and begin < x.data.ptr + math.prod(x.shape) * x.itemsize:
                    raise LaunchError("'out' overlaps another argument in memory. Pass an array of its own.")


def as_cupy_array(cp: Any, value: Any, where: str) -> Any:
    """Return a device array as a CuPy array without a copy; dtypes such as bfloat16 are viewed as bits."""
    if isinstance(value, cp.ndarray):
        return value
    if is_torch_object(value):
        value = value.detach()
        row = DTYPES.get(str(value.dtype).removeprefix("torch."))
        if row is not None and row.bits:  # CuPy may lack the dtype
            value = value.view(getattr(sys.modules["torch"], "int16" if row.itemsize_bytes == 2 else "uint8"))
    try:
        check_tensor_has_values(value)
        if hasattr(value, "__cuda_array_interface__") and not is_torch_object(value):
            return cp.asarray(value)
        return cp.from_dlpack(value)
    except (RuntimeError, BufferError, TypeError, ValueError) as err:
        raise LaunchError(f"{where}: cannot view {type(value).__name__} on the device ({err}). Move it there.") from err


class _ForeignStream:
    """CUDA's stream protocol for a stream whose library does not implement it."""

    def __init__(self, pointer: int, owner: Any) -> None:
        self.pointer, self.owner = pointer, owner

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the stream's address."""
        return 0, self.pointer


def as_cupy_stream(cuda: Any, stream: Any) -> Any:
    """Return a stream as a CuPy stream; ``None`` gives the current stream."""
    if stream is None:
        return cuda.get_current_stream()
    if isinstance(stream, cuda.Stream):
        return stream
    pointer = stream.cuda_stream if hasattr(stream, "cuda_stream") else stream.ptr
    if not pointer:
        return cuda.Stream.null
    if hasattr(cuda.Stream, "from_external"):  # CuPy 14, where the older class is deprecated
        return cuda.Stream.from_external(_ForeignStream(pointer, stream))
    return cuda.ExternalStream(pointer)


def _record_stream(arrays: Sequence[Any], stream: Any, pointer: int) -> None:
    """Record a stream on torch tensors, whose allocator knows only the stream on which they were created."""
    for tensor in arrays:
        if not is_torch_object(tensor) or not tensor.is_cuda:
            continue
        cuda = sys.modules["torch"].cuda
        if pointer == cuda.current_stream(tensor.device).cuda_stream:
            continue
        if not is_torch_object(stream):
            stream = cuda.ExternalStream(pointer, tensor.device) if pointer else cuda.default_stream(tensor.device)
        tensor.record_stream(stream)


def is_torch_object(value: Any) -> bool:
    """Return whether a value is a torch object, without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch"


def _caller_outputs_as_list(out: Any, count: int) -> list[Any]:
    return [out] if count == 1 and not isinstance(out, (tuple, list)) else list(out)
