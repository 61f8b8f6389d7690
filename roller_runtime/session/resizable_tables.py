"""Tables of the native runner whose numbers follow a size: one frame serves all lengths of a conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from roller_runtime.errors import ArtifactError
from roller_runtime.session.native_frame import STEP_FIELDS, NativeFrame, RunnerTables
from roller_runtime.session.native_runner import Runner
from roller_runtime.session.plan_binding import Bound, BoundCall, Operand

#: Integers per row of the table of steps.
_STEP_WORDS = len(STEP_FIELDS)
#: Columns of a step that follow sizes; the others are equal at all sizes.
_VARYING = tuple(n for n, name in enumerate(STEP_FIELDS) if name.endswith(("rows", "bytes", "offset", "pitch")))


@dataclass(frozen=True)
class _Layout:
    """Positions, in the concatenated numbers of the tables, of the shapes, steps, arena offsets and patches."""

    shapes: int
    steps: int
    arena: int
    patches: int

    @classmethod
    def of(cls, tables: RunnerTables) -> _Layout:
        return cls(len(tables.shapes), len(tables.steps), len(tables.in_arena), len(tables.patches))


def _numbers(tables: RunnerTables) -> np.ndarray:
    """Return all numbers of the tables that may follow sizes, in one array."""
    steps = tables.steps.view(np.int64).reshape(-1, _STEP_WORDS)[:, _VARYING]
    arena = tables.tensors["data"][tables.in_arena].astype(np.int64)
    return np.concatenate([tables.shapes, steps.reshape(-1), arena, tables.patches[:, 2]])


def _structure(tables: RunnerTables) -> tuple[object, ...]:
    """Return everything in the tables that must be equal at all sizes."""
    steps = tables.steps.copy()
    words = steps.view(np.int64).reshape(-1, _STEP_WORDS)
    words[:, _VARYING] = 0
    words[:, STEP_FIELDS.index("cuts")] -= tables.cuts.ctypes.data
    held = tables.tensors[["ndim", "code", "bits", "lanes"]]
    calls = tuple(_call_structure(s) for s in tables.segments)
    return (words.tobytes(), tables.cuts.tobytes(), held.tolist(), tables.in_arena.tolist(),
            tables.patches[:, :2].tolist(), calls)  # fmt: skip


def _call_structure(segment: tuple[int, int] | BoundCall) -> object:
    if not isinstance(segment, BoundCall):
        return segment
    return segment.step, tuple(map(_operand_structure, (*segment.inputs, *segment.outputs)))


def _operand_structure(operand: Operand | None) -> object:
    return operand and (operand.shape, operand.dtype.str, operand.place, operand.held is None)


class ResizableTables:
    """Tables at one size, and their numbers at all sizes of a range.

    Parameters
    ----------
    made
        Function that returns the bound steps and tables at a size.
    low, high
        The ends of the range.

    Raises
    ------
    ArtifactError
        If the tables differ between sizes in more than numbers, or a number is no linear function of the size.
    """

    # Every number is a sum of products of dimensions, of which one at most contains the size: two sizes determine it,
    # and further ones test it.
    def __init__(self, made: Callable[[int], tuple[tuple[Bound, ...], RunnerTables]], low: int, high: int) -> None:
        self.steps, self.tables = made(high)
        sizes = sorted({low, high, *np.linspace(low, high, 7, dtype=int).tolist(), min(high, low + 1)})
        several = [(size, made(size)[1]) for size in sizes]
        structure = _structure(self.tables)
        if any(_structure(tables) != structure for _, tables in several):
            raise ArtifactError("the tables of a decoder differ between lengths in more than numbers.")
        numbers = np.stack([_numbers(tables) for _, tables in several])
        span = max(1, sizes[-1] - sizes[0])
        slopes, rest = np.divmod(numbers[-1] - numbers[0], span)
        starts = numbers[0] - slopes * sizes[0]
        meant = starts + slopes * np.array(sizes)[:, None]
        if rest.any() or not np.array_equal(meant, numbers):
            raise ArtifactError("a number in the tables of a decoder is no linear function of the length.")
        layout = _Layout.of(self.tables)
        ends = np.cumsum([layout.shapes, layout.steps * len(_VARYING), layout.arena, layout.patches])
        begins = (0, *ends[:-1])
        self.parts = tuple(_VaryingNumbers.of(starts[a:b], slopes[a:b]) for a, b in zip(begins, ends, strict=True))


@dataclass(frozen=True)
class _VaryingNumbers:
    """Numbers that follow the size: their positions, and their values as ``start + slope * size``."""

    at: np.ndarray
    start: np.ndarray
    slope: np.ndarray

    @classmethod
    def of(cls, start: np.ndarray, slope: np.ndarray) -> _VaryingNumbers:
        at = np.flatnonzero(slope)
        return cls(at, start[at], slope[at])

    def at_size(self, size: int) -> np.ndarray:
        return np.asarray(self.start + self.slope * size)


class ResizableFrame(NativeFrame):
    """A frame whose tables are its own and are set to a size before a call."""

    def __init__(
        self, resizable: ResizableTables, arena_bytes: int, runner: Runner, array_count: int, thread_count: int,
        arena: np.ndarray,
    ) -> None:  # fmt: skip
        shared = resizable.tables
        super().__init__(resizable.steps, arena_bytes, shared, runner, array_count, thread_count, arena)
        self._parts, self.size = resizable.parts, -1
        self._shapes, self._rows, self._patches = shared.shapes.copy(), shared.steps.copy(), shared.patches.copy()
        self._tensors["shape"] -= np.uint64(shared.shapes.ctypes.data)
        self._tensors["shape"] += np.uint64(self._shapes.ctypes.data)
        self._struct.steps, self._struct.patches = self._rows.ctypes.data, self._patches.ctypes.data
        # Positions in flat views of the tables.
        _, steps, arena_part, _ = self._parts
        self._words = self._rows.view(np.int64)
        self._step_words = steps.at // len(_VARYING) * _STEP_WORDS + np.array(_VARYING)[steps.at % len(_VARYING)]
        self._arena_rows = shared.in_arena[arena_part.at]

    def resize(self, size: int) -> None:
        """Set all numbers to their values at ``size``."""
        if size == self.size:
            return
        shapes, steps, arena, patches = self._parts
        self._shapes[shapes.at] = shapes.at_size(size)
        if len(steps.at):
            self._words[self._step_words] = steps.at_size(size)
        if len(arena.at):
            self._tensors["data"][self._arena_rows] = arena.at_size(size) + self.arena.ctypes.data
        if len(patches.at):
            self._patches[patches.at, 2] = patches.at_size(size)
        self.size = size
