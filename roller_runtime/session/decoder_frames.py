"""Frames of a decoder: for each choice of kernels, tables whose numbers follow the length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from roller_runtime.core.fork_safe_lock import ForkSafeLock
from roller_runtime.cpu import threads
from roller_runtime.session.cpu_kernel_loading import allocate_aligned
from roller_runtime.session.native_frame import RunnerTables, make_runner_tables
from roller_runtime.session.plan_binding import Bound, bind_plan, may_run_on_other_threads
from roller_runtime.session.range_plan import variant_key
from roller_runtime.session.range_session import RangeSession
from roller_runtime.session.resizable_tables import ResizableFrame, ResizableTables


class _Workspace:
    """Memory of one call at a time: an arena, and a frame for each choice of kernels."""

    def __init__(self, arena: np.ndarray) -> None:
        self.arena = arena
        self.frames: dict[tuple[int, ...], ResizableFrame] = {}


class DecoderFrames:
    """Memory and tables of calls at all lengths; each call borrows a frame.

    Parameters
    ----------
    ranges
        The model over all lengths.
    size
        Name of its only size, the number of tokens.
    tokens_per_call
        Number of tokens per call.
    """

    def __init__(self, ranges: RangeSession, size: str, tokens_per_call: int) -> None:
        self._ranges, self._size, self._tokens_per_call = ranges, size, tokens_per_call
        self._chosen: dict[int, tuple[int, ...]] = {}
        self._tables: dict[tuple[int, ...], ResizableTables] = {}
        self._threads = 1
        self._workspaces: list[_Workspace] = []
        self._lock = ForkSafeLock()
        self._most_workspaces = max(2, len(threads.processors()))

    def prepare(self) -> None:
        """Choose the kernels for all lengths and lay out their tables; raise ``ArtifactError`` if this fails."""
        for total in range(self._tokens_per_call, self._ranges.ranges[self._size][1] + 1):
            self.choose_kernels(total)
        for choice in dict.fromkeys(self._chosen.values()):
            self.tables_for(choice)

    def choose_kernels(self, total: int) -> tuple[int, ...]:
        """Return the number of the kernel for each key of the plan at a length."""
        found = self._chosen.get(total)
        if found is None:
            plan = self._ranges.plan
            sizes = plan.with_derived_sizes({self._size: total})
            found = self._chosen[total] = tuple(plan.chooser.choose(key, sizes) for key in plan.kernels)
        return found

    def tables_for(self, choice: tuple[int, ...]) -> ResizableTables:
        """Return the tables for chosen kernels."""
        found = self._tables.get(choice)
        if found is None:
            found = ResizableTables(lambda size: self.bind(choice, size), *self._ranges.ranges[self._size])
            self._threads = max(self._threads, self._thread_count(found.steps))
            self._tables[choice] = found
        return found

    def bind(self, choice: tuple[int, ...], total: int) -> tuple[tuple[Bound, ...], RunnerTables]:
        """Return the bound steps and the tables for chosen kernels at a length."""
        ranges = self._ranges
        sizes = ranges.plan.with_derived_sizes({self._size: total})
        chosen = dict(zip(ranges.plan.kernels, choice, strict=True))
        plan = ranges.plan.at(sizes, chosen)
        loaded = {
            name: replace(ranges.parts.kernels[name], code=ranges.plan.kernels[key][n].at(sizes))
            for key, n in chosen.items()
            if (name := variant_key(key, n))
        }
        steps = bind_plan(plan, loaded, ranges.constants)
        return steps, make_runner_tables(steps, len(plan.program.inputs), self._thread_count(steps))

    def _thread_count(self, steps: Sequence[Bound]) -> int:
        wakes = self._ranges.cores > 1 and any(may_run_on_other_threads(step) for step in steps)
        return min(self._ranges.cores, threads.count_simultaneous_threads()) if wakes else 1

    @contextmanager
    def borrow(self, total: int, array_count: int) -> Iterator[ResizableFrame]:
        """Lend a frame for a call at a length with the given number of inputs and outputs."""
        try:
            workspace = self._workspaces.pop()  # atomic
        except IndexError:
            workspace = _Workspace(allocate_aligned(self._ranges.arena_bytes))
        try:
            choice = self.choose_kernels(total)
            frame = workspace.frames.get(choice)
            if frame is None:
                with self._lock:
                    resizable = self.tables_for(choice)
                frame = workspace.frames[choice] = ResizableFrame(
                    resizable,
                    self._ranges.arena_bytes,
                    self._ranges.runner,
                    array_count,
                    self._threads,
                    workspace.arena,
                )
            frame.resize(total)
            yield frame
        finally:
            if len(self._workspaces) < self._most_workspaces:  # a burst of threads must not keep its memory
                self._workspaces.append(workspace)
