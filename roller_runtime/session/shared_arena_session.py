"""A session for fixed sizes of a model with dynamic sizes; it borrows its memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from roller_runtime.plan.program_steps import Run
from roller_runtime.session.call_frame import Frame
from roller_runtime.session.call_metrics import CallMeter, HeldArenas
from roller_runtime.session.cpu_kernel_loading import allocate_aligned
from roller_runtime.session.cpu_session import Session
from roller_runtime.session.packed_constants import flatten_lanes
from roller_runtime.session.save_session import SessionParts


class SharedArenaSession(Session):
    """A session for fixed sizes; it shares arenas with the sessions for all other sizes."""

    _arenas: list[np.ndarray]
    _by_arena: dict[int, Frame]
    _predict: Callable[[str], float]

    @classmethod
    def of(
        cls, parts: SessionParts, arenas: list[np.ndarray], predict: Callable[[str], float], meter: CallMeter,
        held: HeldArenas,
    ) -> SharedArenaSession:  # fmt: skip
        """Return a session that borrows memory from ``arenas``; ``predict`` returns predicted seconds by kernel key."""
        session = cls.__new__(cls)
        session._arenas, session._by_arena, session._predict = arenas, {}, predict
        session._start(parts, meter, held)
        session._most_frames = sys.maxsize  # _call returns every arena; a dropped one would stay in _by_arena
        arenas += [f.arena for f in session._frames]
        session._frames.clear()
        return session

    @property
    def said(self) -> dict[str, tuple[float | None, str]]:
        """Predicted seconds of the kernels that run, by key, without bottlenecks."""
        used = {s.kernel for s in flatten_lanes(self.plan.program.steps) if isinstance(s, Run)}
        return {key: (self._predict(key), "") for key in used}

    def _frame(self, arena: np.ndarray | None = None) -> Frame:
        if arena is None:
            try:
                arena = self._arenas.pop()  # atomic
            except IndexError:
                arena = allocate_aligned(self.plan.arena_bytes)
                self._arenas_held.add(arena)
        frame = self._by_arena.get(id(arena))
        if frame is None:
            frame = self._by_arena[id(arena)] = super()._frame(arena)
        return frame

    def _call(self, inputs: Any, out: Any, on_device: bool, seconds: dict[int, float] | None = None) -> Any:
        frame = self._frame()
        self._frames.append(frame)
        try:
            return super()._call(inputs, out, on_device, seconds)
        finally:
            while self._frames:
                self._arenas.append(self._frames.pop().arena)
