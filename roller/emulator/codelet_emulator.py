"""Runs codelets and their schedule on the CPU: every unit has its own memory, and exchanges are copies.

In a superstep, all units first receive their slices, and then all compute. A unit's memory tracks which elements are
initialized, so that reads of missing data fail and exchanges send only written data. ``cxx/poplar`` replaces Poplar's
header.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np

from roller.artifact import KernelArtifact
from roller.emulator import build_library
from roller.errors import EmulationError, shown
from roller.expr import Index, Tensor
from roller.expr.scalar import Term
from roller.targets import check_language
from roller.tile.superstep_schedule import Schedule, StagePlan, TensorPlan, codelet_name
from roller.tile.tensor_boxes import WORD_BYTES, Box
from roller_runtime.core.dtypes import DTYPES, decode_stored_values, encode_stored_values, storage_dtype

#: First and last point of a tile along each axis.
Ranges = Mapping[str, tuple[int, int]]
_ORDERS = ("forward", "reverse", "random")
_POISON = 0xFF
_FAULT_BYTES = 256
#: Approximate time in seconds of a unit's turn (copies in Python), and of a codelet's point (checked accesses).
_TURN_S, _POINT_S = 2e-4, 4e-8


class FieldStruct(ctypes.Structure):
    """Mirror of ``roller_steps::Field``: data, initialized elements, writer of each word, element count, and name."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("held", ctypes.c_void_p),
        ("owners", ctypes.c_void_p),
        ("elements", ctypes.c_int64),
        ("name", ctypes.c_char_p),
    )


class UnitMemory:
    """A unit's copy of a piece of a tensor, with a mask of initialized elements."""

    def __init__(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self.name, self.shape = name, tuple(shape)
        self.data = np.full(int(np.prod(shape, dtype=np.int64)), 0, storage_dtype(dtype))
        self.data.view(np.uint8)[:] = _POISON
        self.held = np.zeros(len(self.data), np.uint8)
        self.owners = np.zeros(-(-self.data.nbytes // WORD_BYTES), np.uint8)

    def forget(self) -> None:
        """Mark all elements as uninitialized before the next exchange."""
        self.data.view(np.uint8)[:] = _POISON
        self.held[:] = 0

    def field(self) -> FieldStruct:
        """Return a description of the memory for a codelet; mark all words as not yet written by its workers."""
        self.owners[:] = 0
        places = (a.ctypes.data for a in (self.data, self.held, self.owners))
        return FieldStruct(*places, len(self.data), self.name.encode())


class EmulatedCodelets:
    """Codelet artifact built for the CPU, which can run in several orders; accesses are always checked.

    Raises
    ------
    EmulationError
        If the artifact is in another language, or g++ is missing or refuses the source.
    """

    #: Whether some units can run without the others; false, since units exchange data.
    runs_blocks: ClassVar[bool] = False

    @staticmethod
    def expected_s(artifact: KernelArtifact) -> float:
        """Return a rough estimate of one run's time in seconds, used to reject runs that take too long."""
        s = Schedule.from_dict(artifact.target["schedule"])
        turns = s.tasks * (s.steps + len(s.stages))
        return turns * _TURN_S + sum(x.points for x in artifact.expression.stages) * _POINT_S

    def __init__(
        self,
        artifact: KernelArtifact,
        *,
        check: bool = True,
        cache_dir: str | os.PathLike[str] | None = None,
        keep: bool = True,
    ) -> None:
        check_language(artifact.language, ("poplar",), "emulator", EmulationError, "Lower it for such a device.")
        del check
        self.artifact = artifact
        self.schedule = Schedule.from_dict(artifact.target["schedule"])
        self._built = build_library.load_library(
            _source_with_drivers(artifact.source, self.schedule), True, cache_dir, keep=keep
        )
        self._run = {p.entry: getattr(self._built, f"roller_run_{p.entry}") for p in _all_stage_plans(self.schedule)}
        self._boxes = {t.name: _make_tensor_box(t, self.schedule) for t in self.schedule.tensors}

    def __call__(
        self, arrays: Sequence[np.ndarray], *, order: str = "forward", seed: int = 0, workers: int | None = None
    ) -> tuple[np.ndarray, ...]:
        """Run all supersteps; units and workers take turns in the given order."""
        del workers
        if order not in _ORDERS:
            raise EmulationError(f"emulator: order: expected one of {', '.join(_ORDERS)}, got {shown(order)}.")
        home = self._home_arrays(arrays)
        written = {n: np.zeros(home[n].shape, bool) for n in self._tensor_names_of_role("output")}
        s, shuffle = self.schedule, random.Random(seed)
        together = max(1, s.units // s.split) * s.split  # parts of a reduction are combined within a wave
        for first in range(0, s.tasks, together):
            wave = [_EmulatedUnit(self, t) for t in range(first, min(first + together, s.tasks))]
            turns = wave[::-1] if order == "reverse" else shuffle.sample(wave, len(wave)) if order == "random" else wave
            for unit, send in self._run_wave(wave, turns, home, (order, shuffle.randrange(1 << 30))):
                unit.send(send, home, written)
        for name, where in written.items():
            if not where.all():
                place = [int(x[0]) for x in np.nonzero(~where)]
                raise EmulationError(f"emulator: output '{name}'{place}: expected a value, no unit sent one.")
        outputs = [t.shape for t in self.artifact.expression.output_tensors]
        return tuple(
            decode_stored_values(home[n], t.dtype).reshape(shape)
            for n, t, shape in zip(
                (a.name for a in self.artifact.outputs), self.artifact.expression.output_tensors, outputs, strict=True
            )
        )

    def _run_wave(
        self,
        wave: Sequence[_EmulatedUnit],
        turns: Sequence[_EmulatedUnit],
        home: Mapping[str, np.ndarray],
        how: tuple[str, int],
    ) -> Iterator[tuple[_EmulatedUnit, tuple[str, ...]]]:
        """Run all stages on the units of a wave; yield each unit that has results, with the names of its outputs."""
        s = self.schedule
        for plan in s.stages:
            # Parts of a reduction are combined before any other stage; the first part's unit continues alone.
            taking = [u for u in turns if plan.anchor or u.task % s.split == 0]
            for step in range(s.steps if plan.anchor else 1):
                for unit in taking:
                    unit.receive(plan, step, home)
                for unit in taking:
                    unit.compute(plan, step, how)
            if plan.anchor and s.split > 1:
                self._combine_split_reductions(wave, how)
        own = tuple(self._tensor_names_of_role("output"))
        yield from ((unit, own) for unit in turns if unit.task % s.split == 0)

    def _combine_split_reductions(self, wave: Sequence[_EmulatedUnit], how: tuple[str, int]) -> None:
        """Combine the parts of each split reduction in the unit that has the first part."""
        s = self.schedule
        assert s.combine is not None and s.finish is not None
        for at in range(0, len(wave), s.split):
            owner = wave[at]
            for other in wave[at + 1 : at + s.split]:
                if other.ranges(0) is None:  # the last parts may be empty
                    continue
                part = UnitMemory("part", (s.sums,), s.sums_dtype)
                part.data[:], part.held[:] = other.sums.data, other.sums.held
                owner.compute(s.combine, 0, how, [part])
            owner.compute(s.finish, 0, how)

    def run(self, entry: str, memories: Sequence[UnitMemory], how: tuple[str, int]) -> None:
        """Run a codelet with all workers of one unit."""
        fields = [m.field() for m in memories]
        array = (FieldStruct * len(fields))(*fields)
        message = ctypes.create_string_buffer(_FAULT_BYTES)
        if self._run[entry](array, _ORDERS.index(how[0]), ctypes.c_uint(how[1]), message):
            raise EmulationError(f"emulator: {entry}: {message.value.decode(errors='replace')}.")

    def box(self, name: str) -> Box:
        """Return the box of the tensor ``name``."""
        return self._boxes[name]

    def _tensor_names_of_role(self, role: str) -> list[str]:
        return [t.name for t in self.schedule.tensors if t.role == role]

    def _home_arrays(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arguments as arrays in home memory: inputs are filled, and outputs are zero."""
        inputs = self.artifact.inputs
        if len(arrays) != len(inputs):
            raise EmulationError(f"emulator: expected {len(inputs)} arrays, got {len(arrays)}.")
        found = {}
        for a, array in zip(inputs, arrays, strict=True):
            bits = DTYPES[a.dtype].bits and array.dtype != DTYPES[a.dtype].storage
            kept = encode_stored_values(array, a.dtype) if bits else array.astype(storage_dtype(a.dtype), copy=False)
            if kept.size != int(np.prod(a.shape, dtype=np.int64)):
                raise EmulationError(f"emulator: input '{a.name}': expected {a.shape}, got {array.shape}.")
            found[a.name] = np.ascontiguousarray(kept).reshape(a.shape)
        for a in self.artifact.outputs:
            found[a.name] = np.zeros(a.shape, storage_dtype(a.dtype))
        return found


class _EmulatedUnit:
    """One unit with its memory while it performs one task."""

    def __init__(self, device: EmulatedCodelets, task: int) -> None:
        self.device, self.task = device, task
        s = device.schedule
        self.memory = {t.name: UnitMemory(t.name, t.pitches, t.dtype) for t in s.tensors}
        self.sums = UnitMemory("sums", (s.sums,), s.sums_dtype)
        self.part, tile = task % s.split, task // s.split
        self.tile: dict[str, tuple[int, int]] = {}
        for a in reversed([a for a in s.axes if a.spatial]):
            number = -(-a.extent // a.tile)
            first = tile % number * a.tile
            self.tile[a.name], tile = (first, min(first + a.tile, a.extent) - 1), tile // number
        self.start: dict[str, tuple[int, ...]] = {}

    def ranges(self, step: int) -> dict[str, tuple[int, int]] | None:
        """Return the first and last points per axis in a reduction step; ``None`` if the step is past the reduction."""
        s, out = self.device.schedule, dict(self.tile)
        left = self.part * s.steps + step
        for a in reversed([a for a in s.axes if not a.spatial]):
            number = -(-a.extent // a.tile)
            first = left % number * a.tile
            out[a.name], left = (first, min(first + a.tile, a.extent) - 1), left // number
        return out if left == 0 else None

    def receive(self, plan: StagePlan, step: int, home: Mapping[str, np.ndarray]) -> None:
        """Copy from home memory the slices of inputs that a codelet reads."""
        ranges = self.ranges(step)
        if ranges is None:
            return
        for name in plan.reads:
            t = self.device.schedule.tensor(name)
            if t.role == "input":
                self.start[name] = self.device.box(name).start(ranges)
                memory = self.memory[name]
                memory.forget()
                here, there = _unit_and_home_slices(t, self.start[name], home[name].shape)
                memory.data.reshape(t.pitches)[here] = home[name][there]
                memory.held.reshape(t.pitches)[here] = 1

    def compute(self, plan: StagePlan, step: int, how: tuple[str, int], given: Sequence[UnitMemory] = ()) -> None:
        """Run a codelet on the unit's memory and on the memory ``given`` by another unit."""
        ranges, s = self.ranges(step), self.device.schedule
        if ranges is None:
            return
        for t in s.tensors:
            if t.role != "input":
                self.start.setdefault(t.name, self.device.box(t.name).start(self.tile))
        place = UnitMemory("place", (len(plan.place),), "int32")
        place.data[:] = [self._number(n, plan, ranges, step) for n in plan.place]
        place.held[:] = 1
        fields = [*given, *(self.memory[n] for n in plan.reads)]
        fields += [self.sums] if plan.keeps_sums else []
        fields += [self.memory[plan.writes]] if plan.writes else []
        self.device.run(plan.entry, [*fields, place], how)

    def _number(self, name: str, plan: StagePlan, ranges: Ranges, step: int) -> int:
        """Return the value of the entry ``name`` in ``place``, which describes a unit's task and step to a codelet."""
        s = self.device.schedule
        if name in ("first", "last"):
            return int(step == (0 if name == "first" else s.steps - 1))
        kind, _, rest = name.partition("_")
        if kind == "b":
            tensor, _, d = rest.rpartition("_")
            return self.start[tensor][int(d)]
        low, high = ranges.get(rest, (0, dict(plan.axes)[rest] - 1))
        tile = next((a.tile for a in s.axes if a.name == rest), high + 1)
        return {"f": low, "n": high - low + 1, "m": tile}[kind]

    def send(self, names: Sequence[str], home: dict[str, np.ndarray], written: dict[str, np.ndarray]) -> None:
        """Copy to home memory the results that a codelet wrote."""
        for name in names:
            t = self.device.schedule.tensor(name)
            here, there = _unit_and_home_slices(t, self.start[name], home[name].shape)
            held = self.memory[name].held.reshape(t.pitches)[here].astype(bool)
            home[name][there] = np.where(held, self.memory[name].data.reshape(t.pitches)[here], home[name][there])
            written[name][there] |= held


def _unit_and_home_slices(
    t: TensorPlan, start: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:  # fmt: skip
    """Return the slices that select a tensor's piece in a unit's copy and in home memory."""
    here, there = [], []
    for first, step, count, size in zip(start, t.lattice, t.counts, shape, strict=True):
        number = max(0, min(count, -(-(size - first) // step)))
        here.append(slice(0, number))
        there.append(slice(first, first + number * step, step))
    return tuple(here), tuple(there)


def _make_tensor_box(t: TensorPlan, s: Schedule) -> Box:
    """Return the box of a tensor of the schedule."""
    accesses = tuple(tuple(Index(tuple(Term(*x) for x in terms), const) for const, terms in a) for a in t.accesses)
    extents = {a: e for plan in s.stages for a, e in plan.axes}
    return Box(Tensor(t.name, t.shape, t.dtype), accesses, tuple(extents.items()))


def _all_stage_plans(s: Schedule) -> list[StagePlan]:
    return [*s.stages, *(p for p in (s.combine, s.finish) if p is not None)]


def _source_with_drivers(source: str, schedule: Schedule) -> str:
    """Return the source with a C function for each codelet, which connects its fields and runs its workers in turn."""
    given = {p.entry: ["part"] if p is schedule.combine else [] for p in _all_stage_plans(schedule)}
    drivers = [_emit_driver_function(p.entry, _field_names(p, given[p.entry])) for p in _all_stage_plans(schedule)]
    return f"#define ROLLER_WORKERS {schedule.workers}u\n{source}\n" + "\n".join(drivers)


def _field_names(p: StagePlan, given: Sequence[str]) -> list[str]:
    written = [f"t_{codelet_name(p.writes)}"] if p.writes else []
    return [*given, *(f"t_{codelet_name(n)}" for n in p.reads), *(["sums"] if p.keeps_sums else []), *written, "place"]


def _emit_driver_function(entry: str, names: Sequence[str]) -> str:
    connected = " ".join(f"v.{n}.field = fields + {i};" for i, n in enumerate(names))
    return f"""\
extern "C" int roller_run_{entry}(roller_steps::Field* fields, int order, unsigned seed, char* message) {{
  {entry} v;
  {connected}
  roller_steps::fault[0] = 0;
  const unsigned n = poplar::MultiVertex::numWorkers();
  for (unsigned turn = 0; turn < n; ++turn) {{
    roller_steps::worker = order == 0 ? turn : order == 1 ? n - 1 - turn : (turn + seed) % n;
    v.compute(roller_steps::worker);
  }}
  memcpy(message, roller_steps::fault, sizeof roller_steps::fault);
  return roller_steps::fault[0] != 0;
}}
"""
