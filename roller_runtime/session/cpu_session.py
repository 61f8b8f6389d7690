"""A model that runs on a processor and can be called from any number of threads at the same time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from roller_runtime.core.display import one_line_repr
from roller_runtime.cpu import threads
from roller_runtime.cpu.tvm_libraries import runtime_and_pool_resizer
from roller_runtime.errors import LaunchError, ModelError, counted
from roller_runtime.session.call_frame import Frame
from roller_runtime.session.call_metrics import CallMeter, HeldArenas
from roller_runtime.session.caller_arrays import Feeds
from roller_runtime.session.inputs_given_by_address import AddressedInputs
from roller_runtime.session.native_frame import NativeFrame, make_runner_tables
from roller_runtime.session.packed_constants import without_constants
from roller_runtime.session.plan_binding import Bound, bind_plan, may_run_on_other_threads
from roller_runtime.session.save_session import SessionParts
from roller_runtime.session.session_interface import ModelCalls, describe_signature
from roller_runtime.session.session_metrics import SessionMetrics


class Session(ModelCalls):
    """A model that runs on this machine's processor.

    Calls are re-entrant: each uses its own frame from a pool.

    Parameters
    ----------
    parts
        Plan, loaded kernels and packed constants; it is bound to memory at once.

    Raises
    ------
    ModelError
        If the plan and the kernels do not match.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._start(parts)

    def _start(self, parts: SessionParts, meter: CallMeter | None = None, arenas: HeldArenas | None = None) -> None:
        self._meter, self._arenas_held = meter or CallMeter(), arenas or HeldArenas()
        plan, cores = parts.plan, parts.cores
        if cores < 1:
            raise ModelError(f"{plan.program.name}: cores: expected at least 1, got {cores}.")
        #: The plan; its program has no constants, because packed ones are read in that form only.
        self.plan = without_constants(plan)
        self.cores = cores
        self.kernels, self.constants = parts.kernels, parts.constants
        #: Kernels by key, with their programs, estimates and sources; empty if the saved model lacks them.
        self.artifacts = parts.artifacts
        self._feeds, self._model_digest = Feeds(plan.program), parts.model_digest
        self.runner = parts.runner
        self._bind_and_allocate(bind_plan(plan, parts.kernels, parts.constants))

    def _bind_and_allocate(self, steps: tuple[Bound, ...]) -> None:
        #: The plan's steps bound to kernels and memory.
        self.steps = steps
        #: Whether a call wakes other threads; if not, none are started.
        self._wakes = self.cores > 1 and any(may_run_on_other_threads(step) for step in steps)
        # A model saved elsewhere may use more cores than this machine has; threads that share a processor only wait.
        self._threads = min(self.cores, threads.count_simultaneous_threads()) if self._wakes else 1
        self._tables = make_runner_tables(
            steps, len(self.plan.program.inputs), self._threads, gathers=self.runner is not None and self.runner.gathers
        )
        self._most_frames = max(2, len(threads.processors()))
        # The first call uses this frame; concurrent calls create others.
        self._frames: list[Frame] = [self._frame()]

    @property
    def feeds(self) -> Feeds:
        """Validation of callers' arrays; see :class:`ModelCalls`."""
        return self._feeds

    @property
    def said(self) -> dict[str, tuple[float | None, str]]:
        """Predicted seconds and bottleneck by kernel key."""
        return {key: (k.code.seconds or None, k.code.bottleneck) for key, k in self.kernels.items()}

    def time_steps(self, feeds: Mapping[str, Any], count: int) -> dict[int, float]:
        """Return the median time of every step, in seconds; see :meth:`ModelCalls.time_steps`."""
        from roller_runtime.session.session_profile import time_bound_steps

        return time_bound_steps(self.plan.program.steps, self.steps, lambda s: self.run_timed(feeds, s), count)

    def run_timed(self, feeds: Mapping[str, Any], seconds: dict[int, float]) -> dict[str, np.ndarray]:
        """Run like :meth:`run`; store each step's time in ``seconds``, keyed by the ``id`` of the bound step."""
        made = self._call(self._feeds.arrays_by_name(feeds), None, False, seconds)
        return dict(zip(self.plan.program.outputs, made, strict=True))

    def run_on_addresses(self, inputs: AddressedInputs) -> list[np.ndarray]:
        """Run on inputs given by address, which are not validated; return new arrays for all outputs in order.

        Raises
        ------
        LaunchError
            If steps do not run natively.
        """
        if self.runner is None:
            raise LaunchError(f"{self.name}: inputs by address: expected a native session. Pass arrays to run().")
        return self._meter.measure(self._call, inputs, None, False)

    def metrics(self) -> SessionMetrics:
        """Return the number of calls and failures, durations, memory, and doubt about the choice of kernels.

        Any thread may ask at any time; calls do not wait for it. Counting adds less than 1 us to a call.
        """
        held = self._arenas_held.sizes_bytes()
        return replace(super().metrics(), arenas=len(held), arena_bytes=sum(held))

    def run_checked(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Run on arrays that are validated already; return all outputs in order."""
        return self._call(inputs, None, False)

    def _call(
        self,
        inputs: list[np.ndarray] | AddressedInputs,
        out: Any,
        on_device: bool,
        seconds: dict[int, float] | None = None,
    ) -> list[np.ndarray]:
        """Run on validated arrays; return all outputs in order."""
        del on_device
        if out is None or isinstance(inputs, AddressedInputs):
            outputs = self._feeds.made()
        else:
            outputs = self._feeds.given(out, inputs)
        try:
            frame = self._frames.pop()  # atomic
        except IndexError:
            frame = self._frame()
        try:
            if self._wakes and self.runner is None:
                threads.prepare_pool_for_kernel(self.cores, runtime_and_pool_resizer)
            frame.run(inputs, outputs, seconds)
        finally:
            if len(self._frames) < self._most_frames:  # a burst of threads must not keep its memory
                self._frames.append(frame)
        return outputs

    def save(self, folder: str | os.PathLike[str], *, sources: bool = True) -> Path:
        """Write the model for ``load_model``, atomically.

        Parameters
        ----------
        folder
            Folder that does not exist or is empty.
        sources
            Whether to include the programs, estimates and sources of the kernels, for inspection.

        Raises
        ------
        ArtifactError
            If the folder is not empty or cannot be written.
        """
        parts = SessionParts(
            self.plan, self.kernels, self.constants, self.cores, self.runner, self.artifacts, self._model_digest
        )
        return parts.save(folder, sources=sources)

    def _frame(self, arena: np.ndarray | None = None) -> Frame:
        made: Frame
        if self.runner is None:
            made = Frame(self.steps, self.plan.arena_bytes, arena)
        else:
            count, taken = len(self._feeds.inputs) + len(self._feeds.outputs), self.plan.arena_bytes
            made = NativeFrame(self.steps, taken, self._tables, self.runner, count, self._threads, arena)
        if arena is None:
            self._arenas_held.add(made.arena)
        return made

    def __repr__(self) -> str:
        """Return the name, inputs, outputs and number of threads on one line."""
        return one_line_repr("Session", f"{self.name}: {describe_signature(self)}, {counted(self.cores, 'thread')}")
