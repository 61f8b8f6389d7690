"""Runs all launches of a CUDA or HIP artifact on NumPy arrays, on the CPU.

Outputs and workspaces start as NaN, buffers have guard bytes, and inputs are compared with their original contents
afterwards, so that missing, out-of-bounds and forbidden writes are detected even if accesses are not checked.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roller.artifact import KernelArtifact, Launch
from roller.emulator import build_library
from roller.emulator.time_allowance import Allowance
from roller.emulator.translate import TranslatedKernel, translate
from roller.errors import EmulationError, EmulationTimeout, shown
from roller.targets import TARGETS, check_language
from roller.targets.lazy import import_object
from roller_runtime.core.dtypes import DTYPES, decode_stored_values, encode_stored_values, storage_dtype
from roller_runtime.core.kernel_argument import Argument
from roller_runtime.core.processor_features_and_count import usable_processors

#: Languages of artifacts that can be emulated.
LANGUAGES = tuple(t.language for t in TARGETS if t.kind.blocks and t.emulated)
#: Orders in which the threads of a block run between barriers, and in which the blocks of a grid run.
ORDERS = ("forward", "reverse", "random")
#: Maximum number of threads of a block on any GPU.
_MAX_THREADS = 1024
_ALIGNMENT = 256
_GUARD = 256
_POISON = 0xFF
_MESSAGE_BYTES = 2048


class EmulatedArtifact:
    """GPU artifact built for the CPU, which can run in several orders.

    Parameters
    ----------
    artifact
        Artifact in the language ``"cuda"`` or ``"hip"``; it need not be built.
    check
        Whether to report out-of-bounds and misaligned accesses; unchecked kernels run faster but build more slowly.
    cache_dir
        Folder for cached builds; the user's cache folder if ``None``.
    keep
        Whether to cache this kernel in addition to the parts that all kernels share.

    Raises
    ------
    EmulationError
        If the artifact is in another language, g++ is missing, or the source cannot be translated or built.
    """

    #: Whether some blocks can run without the others.
    runs_blocks: ClassVar[bool] = True

    def __init__(
        self,
        artifact: KernelArtifact,
        *,
        check: bool = True,
        cache_dir: str | os.PathLike[str] | None = None,
        keep: bool = True,
    ) -> None:
        check_language(artifact.language, LANGUAGES, "emulator", EmulationError, "Lower it for a GPU.")
        self.artifact = artifact
        architecture = cuda_arch_macro(str(artifact.target.get("arch", "")))
        self._launches = []
        self._first = [artifact.prepare] if artifact.prepare else []
        for launch in (*self._first, *artifact.launches):
            text, kernels = translate(launch.source, architecture)
            kernel = next((k for k in kernels if k.entry == launch.entry), None)
            if kernel is None:
                known = ", ".join(k.entry for k in kernels)
                raise EmulationError(f"emulator: expected kernel '{launch.entry}' in the source, found {known}.")
            self._check_launch(launch, kernel)
            built = build_library.load_library(text, check, cache_dir, keep=keep)
            self._launches.append((launch, kernel, getattr(built, f"emul_{kernel.entry}")))

    def _check_launch(self, launch: Launch, kernel: TranslatedKernel) -> None:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        bound = min(kernel.max_threads or _MAX_THREADS, _MAX_THREADS)
        if not 1 <= threads <= bound:
            raise EmulationError(f"{launch.entry}: expected 1 to {bound} threads in a block, got {threads}.")
        if len(launch.arguments) != len(kernel.parameters):
            raise EmulationError(
                f"{launch.entry}: expected {len(kernel.parameters)} arguments "
                f"({', '.join(n for n, _ in kernel.parameters)}), got {len(launch.arguments)}."
            )
        known = {a.name: a for a in self.artifact.arguments}
        for (parameter, c_type), name in zip(kernel.parameters, launch.arguments, strict=True):
            if name not in known:
                raise EmulationError(f"{launch.entry}: argument '{name}' is not among the artifact's {sorted(known)}.")
            if (known[name].number is None) == (parameter in kernel.numbers):
                raise EmulationError(
                    f"{launch.entry}: parameter {parameter}: expected what is passed as a pointer to be an array, and "
                    f"by value a number, got '{name}' of role {known[name].role}."
                )
            if c_type not in DTYPES[known[name].dtype].c_types:
                raise EmulationError(
                    f"{launch.entry}: parameter {parameter}: expected {c_type}, got argument '{name}' of "
                    f"{known[name].dtype}. Are the arguments in the order of the kernel?"
                )

    def __call__(
        self, arrays: Sequence[np.ndarray], *, order: str = "forward", seed: int = 0, workers: int | None = None
    ) -> tuple[np.ndarray, ...]:
        """Run the launches; see :func:`emulate`."""
        buffers = self.buffers(arrays)
        self.run(buffers, order=order, seed=seed, workers=workers)
        return self.outputs(buffers)

    def buffers(self, arrays: Sequence[np.ndarray]) -> dict[str, GuardedBuffer]:
        """Allocate memory for each argument: inputs and numbers are filled, and all others are poisoned."""
        inputs = self.artifact.inputs
        if len(arrays) != len(inputs):
            raise EmulationError(f"emulator: expected {len(inputs)} arrays, got {len(arrays)}.")
        given = dict(zip((a.name for a in inputs), arrays, strict=True))
        return {a.name: GuardedBuffer(a, given.get(a.name)) for a in self.artifact.arguments}

    def run(
        self,
        buffers: Mapping[str, GuardedBuffer],
        *,
        order: str = "forward",
        seed: int = 0,
        workers: int | None = None,
        blocks: Sequence[int] | None = None,
        allowance: Allowance | None = None,
        only: int | None = None,
    ) -> None:
        """Run all launches and verify the memory after each, or run ``only`` one, on memory from :meth:`buffers`."""
        if order not in ORDERS:
            raise EmulationError(f"emulator: order: expected one of {', '.join(ORDERS)}, got {shown(order)}.")
        for launch, kernel, function in self._launches if only is None else [self._launches[only]]:
            _run_launch(launch, kernel, function, buffers, ORDERS.index(order), seed, workers, blocks, allowance)
            for b in buffers.values() if only is None else ():
                b.verify(launch.entry)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, starting with the preparation of constants."""
        return tuple(launch for launch, _, _ in self._launches)

    def workers(self, wanted: int | None) -> int:
        """Return the number of operating-system threads that share the blocks of the largest grid."""
        return max(_count_threads(wanted, x.grid[0] * x.grid[1] * x.grid[2]) for x, _, _ in self._launches)

    def outputs(self, buffers: Mapping[str, GuardedBuffer]) -> tuple[np.ndarray, ...]:
        """Return copies of the outputs in their shapes."""
        shapes = [t.shape for t in self.artifact.expression.output_tensors]
        return tuple(buffers[a.name].value(s) for a, s in zip(self.artifact.outputs, shapes, strict=True))

    def run_at_addresses(self, addresses: Mapping[str, int], *, prepare: bool, order: str) -> None:
        """Run the launches, or only the preparation, on the caller's memory without copies and fills, like a device."""
        places: dict[str, GuardedBuffer | _CallerMemory] = {
            a.name: _CallerMemory(addresses[a.name], element_bytes(a))
            for a in self.artifact.arguments
            if a.name in addresses
        }
        first = len(self._first)
        for launch, kernel, function in self._launches[:first] if prepare else self._launches[first:]:
            missing = [n for n in launch.arguments if n not in places]
            if missing:
                raise EmulationError(f"{launch.entry}: expected an address of every argument, got none of {missing}.")
            _run_launch(launch, kernel, function, places, ORDERS.index(order), 0, None)


def emulate(
    artifact: KernelArtifact,
    arrays: Sequence[np.ndarray],
    *,
    order: str = "forward",
    seed: int = 0,
    workers: int | None = None,
    check: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[np.ndarray, ...]:
    """Run a GPU artifact on the CPU and return its outputs."""
    return EmulatedArtifact(artifact, check=check, cache_dir=cache_dir)(arrays, order=order, seed=seed, workers=workers)


@dataclass(frozen=True)
class _CallerMemory:
    address: int
    bytes: int


def element_bytes(argument: Argument) -> int:
    """Return the size of an argument's elements in bytes."""
    if argument.number is not None:
        return storage_dtype(argument.dtype).itemsize
    return int(np.prod(argument.shape, dtype=np.int64)) * storage_dtype(argument.dtype).itemsize


class GuardedBuffer:
    """Device memory for one argument: aligned, guarded on both sides, and poisoned unless it has a given value."""

    def __init__(self, argument: Argument, array: np.ndarray | None) -> None:
        self.argument = argument
        self.dtype = storage_dtype(argument.dtype)
        self.bytes = element_bytes(argument)
        self.elements = self.bytes // self.dtype.itemsize
        raw = np.full(self.bytes + 2 * _GUARD + _ALIGNMENT, _POISON, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT + _GUARD
        self.front, self.data = raw[start - _GUARD : start], raw[start : start + self.bytes]
        self.back = raw[start + self.bytes : start + self.bytes + _GUARD]
        self.address: int = self.data.ctypes.data
        self.given = self._encode_given_array(array) if argument.role == "input" else self._number()
        if self.given is not None:
            self.data[:] = self.given

    def _number(self) -> np.ndarray | None:
        number = self.argument.number
        return None if number is None else np.array([number], self.dtype).view(np.uint8)

    def fill(self, byte: int) -> None:
        """Fill the buffer with a byte that marks unwritten memory, unless it has a given value."""
        if self.given is None:
            self.data[:] = byte

    def changed(self, byte: int) -> np.ndarray:
        """Return the flat positions of elements that differ from the fill byte."""
        size = self.dtype.itemsize
        untouched = np.frombuffer(bytes([byte]) * size, f"u{size}")[0]
        return np.flatnonzero(self.data.view(f"u{size}") != untouched)

    def _encode_given_array(self, array: np.ndarray | None) -> np.ndarray:
        a = self.argument
        if array is None:
            raise EmulationError(f"emulator: no array for argument '{a.name}' of role {a.role}.")
        value = np.asarray(array)
        if value.dtype != self.dtype and DTYPES[a.dtype].bits:
            value = encode_stored_values(value, a.dtype)
        if value.size != self.elements or value.dtype != self.dtype:
            raise EmulationError(
                f"emulator: argument '{a.name}': expected {self.elements} elements of {a.dtype}, got {value.size} of "
                f"{value.dtype}. Pass arrays of the declared shape and dtype."
            )
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def verify(self, entry: str) -> None:
        """Raise an error if a kernel overwrote a guard or an input."""
        name = self.argument.name
        for guard, where in ((self.front, "before the start"), (self.back, "beyond the end")):
            if (guard != _POISON).any():
                raise EmulationError(f"{entry}: out of bounds: wrote {where} of global buffer '{name}'.")
        if self.given is not None and not np.array_equal(self.data, self.given):
            at = int(np.flatnonzero(self.data != self.given)[0])
            raise EmulationError(f"{entry}: wrote to input '{name}' at byte {at}. Are the arguments in kernel order?")

    def value(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a copy of the contents in ``shape``, decoded from the storage dtype."""
        return decode_stored_values(self.data.view(self.dtype).reshape(shape).copy(), self.argument.dtype)


def _run_launch(
    launch: Launch, kernel: TranslatedKernel, function: Callable[..., int],
    buffers: Mapping[str, GuardedBuffer | _CallerMemory],
    order: int, seed: int, workers: int | None, chosen: Sequence[int] | None = None, allowance: Allowance | None = None,
) -> None:  # fmt: skip
    regions = (build_library.Region * max(1, len(launch.arguments)))()
    for region, name, (parameter, _) in zip(regions, launch.arguments, kernel.parameters, strict=False):
        label = name if parameter.removesuffix("_ptr") == name else f"{name} (parameter {parameter})"
        b = buffers[name]
        region.base, region.bytes, region.name, region.space = b.address, b.bytes, label.encode(), 0
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    blocks = launch.grid[0] * launch.grid[1] * launch.grid[2] if chosen is None else len(chosen)
    numbers = (ctypes.c_uint32 * len(chosen or ()))(*(chosen or ()))
    described = build_library.LaunchStruct(
        (ctypes.c_uint * 3)(*launch.grid), (ctypes.c_uint * 3)(*launch.block), launch.dynamic_shared_bytes, order,
        _count_threads(workers, blocks), int(kernel.converges), len(launch.arguments), seed % 2**64, regions,
        ctypes.cast(message, ctypes.c_char_p), _MESSAGE_BYTES,
        ctypes.cast(numbers, ctypes.POINTER(ctypes.c_uint32)) if chosen is not None else None, len(numbers),
    )  # fmt: skip
    if allowance is not None:
        # A used-up limit stops at once; 0 would mean no limit.
        described.limit_s, described.deadline_s = max(allowance.left_s, 1e-9), allowance.deadline_s
    status = function(ctypes.byref(described))
    if allowance is not None:
        allowance.charge(described.used_s)
    if status == 2:
        why = message.value.decode(errors="replace") or "expected an end within the time given, got none. Give it more"
        raise EmulationTimeout(f"{launch.entry}: {why}.")
    if status:
        raise EmulationError(f"{launch.entry}: {message.value.decode(errors='replace')}.")


def _count_threads(wanted: int | None, blocks: int) -> int:
    available = usable_processors()
    return max(1, min(wanted or available, blocks))


def emulator_of_artifact(artifact: KernelArtifact) -> Any:
    """Return the emulator class for an artifact's language."""
    known = {t.language: t.emulator for t in TARGETS if t.language and t.emulated}
    check_language(artifact.language, known, "emulator", EmulationError, "Lower it for a device that is emulated.")
    return import_object(known[artifact.language])


def cuda_arch_macro(arch: str) -> int:
    """Return the value of ``__CUDA_ARCH__``: 900 for ``"sm_90"``, and 800 for AMD architectures."""
    m = re.match(r"sm_(\d+)", arch)
    return int(m[1]) * 10 if m else 800


def round_to_dtype(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array with the values that a kernel sees: rounded to ``dtype`` if NumPy lacks it, otherwise unchanged.

    Examples
    --------
    >>> round_to_dtype(np.float32([1.001, 3.14159]), "bfloat16")
    array([1.      , 3.140625], dtype=float32)
    """
    row = DTYPES[dtype]
    if not row.bits:
        return array
    return decode_stored_values(array if array.dtype == row.storage else encode_stored_values(array, dtype), dtype)
