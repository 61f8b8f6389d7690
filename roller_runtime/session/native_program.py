"""``native.bin`` of a saved model: bound steps as tables, from which the C interface runs the model without Python.

The file is little-endian. Its head is ``ROLLERNB``, a version, the number of bytes that follow, and their SHA-256;
``include/roller_runtime.c`` reads it and documents its fields.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from roller_runtime.core.dtypes import storage_dtype
from roller_runtime.cpu.threads import count_simultaneous_threads
from roller_runtime.cpu.tvm_libraries import SYMBOL, TYPE_CODES
from roller_runtime.plan.execution_plan import ARENA, INPUT, Plan
from roller_runtime.plan.program_steps import Value
from roller_runtime.session.cpu_kernel_loading import LoadedKernel
from roller_runtime.session.interpreter import call_label
from roller_runtime.session.native_frame import RunnerTables, make_runner_tables
from roller_runtime.session.packed_constants import Constants
from roller_runtime.session.plan_binding import BoundCall, BoundRun, Operand, bind_plan, may_run_on_other_threads

MAGIC, VERSION = b"ROLLERNB", 1
#: Places of a tensor's data.
_NOWHERE, _CONSTANT, _ARENA, _CALLER = range(4)


class PythonStepError(Exception):
    """The model has a step, or a constant, that only Python can use."""


class _Body:
    """The bytes of the file after its head: numbers of 64 bits, and texts with their length."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def numbers(self, values: Iterable[int]) -> None:
        self.parts.append(np.array(list(values), np.int64).tobytes())

    def text(self, text: str) -> None:
        """Add a text with its length, ended by a zero and padded to 8 bytes."""
        data = text.encode() + b"\0"
        self.numbers([len(data)])
        self.parts.append(data + bytes(-len(data) % 8))

    def file(self, name: str, data: bytes) -> None:
        """Add a file's name and SHA-256."""
        self.text(name)
        self.parts.append(hashlib.sha256(data).digest())


def native_program(
    plan: Plan, kernels: Mapping[str, LoadedKernel], constants: Constants, cores: int, *,
    runner: tuple[str, bytes], gathers: bool, files: Mapping[str, str], machine: Sequence[str], features: Sequence[str],
    arrays: tuple[str, int, Sequence[tuple[int, int, int]]],
) -> bytes:  # fmt: skip
    """Return the contents of ``native.bin``.

    Parameters
    ----------
    runner
        File name and contents of the native runner.
    gathers
        Whether the runner runs gathers.
    files
        File names of the kernels' libraries by key.
    arrays
        File name of the constants, its size in bytes, and for each array its address, size and offset in the file.

    Raises
    ------
    PythonStepError
        If a step needs Python, or a constant is not in the file of constants; the message names it.
    """
    program = plan.program
    steps = bind_plan(plan, kernels, constants)
    wakes = cores > 1 and any(map(may_run_on_other_threads, steps))
    threads = min(cores, count_simultaneous_threads()) if wakes else 1
    tables = make_runner_tables(steps, len(program.inputs), threads, gathers=gathers)
    begin, end = 0, 0
    for segment in tables.segments:
        if isinstance(segment, BoundCall):
            raise PythonStepError(call_label(segment))
        begin, end = segment  # the only one: only steps in Python separate segments
    if program.loose:
        raise PythonStepError(next(iter(program.loose)))
    used = [bound.kernel for bound in tables.bound if isinstance(bound, BoundRun)]
    numbers = {id(kernel): n for n, kernel in enumerate({id(k): k for k in used}.values())}
    keys = {id(kernel): key for key, kernel in kernels.items()}
    body = _Body()
    for words in (machine, features):
        body.numbers([len(words)])
        for word in words:
            body.text(word)
    body.text(program.name)
    body.file(*runner)
    body.text(arrays[0])
    body.numbers([arrays[1], plan.arena_bytes, threads, begin, end])
    for names in (program.inputs, program.outputs):
        body.numbers([len(names)])
        for name in names:
            _add_value(body, program.values[name])
    body.numbers([len(numbers)])
    for kernel in {id(k): k for k in used}.values():
        body.file(files[keys[id(kernel)]], kernel.library)
        body.text(SYMBOL + kernel.code.entry)
    _add_tables(body, tables, numbers, len(program.inputs), arrays[2])
    data = b"".join(body.parts)
    return MAGIC + struct.pack("<qq", VERSION, len(data)) + hashlib.sha256(data).digest() + data


def _add_value(body: _Body, value: Value) -> None:
    dtype = storage_dtype(value.dtype)
    body.text(value.name)
    body.text(value.dtype)
    body.numbers([TYPE_CODES.get(dtype.kind, 1), dtype.itemsize * 8, value.nbytes, len(value.shape), *value.shape])


def _add_tables(
    body: _Body, tables: RunnerTables, numbers: Mapping[int, int], input_count: int,
    spans: Sequence[tuple[int, int, int]],
) -> None:  # fmt: skip
    """Add the tables, with indices in place of pointers."""
    rows = tables.steps.copy()
    rows["cuts"] = (rows["cuts"].astype(np.int64) - tables.cuts.ctypes.data) // 8
    rows["function"] = [numbers[id(b.kernel)] if isinstance(b, BoundRun) else 0 for b in tables.bound]
    body.numbers([len(rows)])
    body.parts.append(rows.tobytes())
    for table in (tables.lanes, tables.shapes, tables.cuts):
        body.numbers([len(table)])
        body.parts.append(np.ascontiguousarray(table, np.int64).tobytes())
    unread = {
        id(operand)
        for bound in tables.bound if isinstance(bound, BoundRun)
        for operand, taken in zip(bound.operands, bound.kernel.code.taken, strict=True) if taken.role == "size"
    }  # fmt: skip
    body.numbers([len(tables.operands)])
    first = 0
    for operand, tensor in zip(tables.operands, tables.tensors, strict=True):
        if id(operand) in unread:  # an array whose extent is a size
            place = _NOWHERE, 0, 0
        else:
            place = _place(operand, input_count, spans)
        body.numbers([*place, int(tensor["code"]), int(tensor["bits"])])
        body.numbers([len(operand.shape), first])
        first += len(operand.shape)


def _place(operand: Operand, input_count: int, spans: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """Return where a tensor's data are: kind of place, index of the caller's array, and offset in bytes."""
    place = operand.place
    if place is not None:
        if place.space == ARENA:
            return _ARENA, 0, place.offset_bytes
        return _CALLER, place.index + (0 if place.space == INPUT else input_count), place.offset_bytes
    assert operand.held is not None
    address = operand.held.__array_interface__["data"][0]
    for start, size, offset in spans:
        if start <= address and address + operand.held.nbytes <= start + size:
            return _CONSTANT, 0, offset + address - start
    raise PythonStepError(f"a constant of shape {operand.shape} that the file of constants lacks")
