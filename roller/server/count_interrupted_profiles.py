"""Detects that files change during every profile, through frequent saves or a step that writes into its project."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from roller.errors import RollerError

#: A change within this many seconds after a profile may have been made by the profile itself.
_SOON_S = 0.5
#: Number of consecutive interrupted profiles before the next one waits; quiet period in seconds for which it waits;
#: number at which an error is raised.
_BEFORE_WAITING, _REST_S, _MOST = 10, 1.0, 15


class InterruptionCounter:
    """Counts consecutive profiles that were interrupted by file changes."""

    def __init__(self) -> None:
        self._count, self._is_waiting, self._ended_s = 0, False, 0.0

    def count_file_change(self, is_running: bool) -> None:
        """Count a file change during or just after a profile; other changes, except during a wait, reset the count."""
        if not self._is_waiting:
            is_cut = is_running or time.monotonic() - self._ended_s < _SOON_S
            self._count = self._count + 1 if is_cut else 0

    def record_profile_end(self) -> None:
        """Record the end of a profile."""
        self._ended_s = time.monotonic()

    @property
    def must_wait(self) -> bool:
        """Whether the next profile has to wait until files stop changing."""
        return self._count >= _BEFORE_WAITING

    async def rest(self, name: str, stop: Callable[[], None]) -> None:
        """Wait for the quiet period; the caller cancels the wait at a change. Raise an error after too many changes."""
        if self._count >= _MOST:
            self._count = 0
            raise RollerError(
                f"{name}: expected files that stay as they are while the step is profiled, got others each time. "
                f"If the step writes Python files of its project, let it write elsewhere."
            )
        stop()  # end the project's process, so that it writes nothing during the wait
        self._is_waiting = True
        try:
            await asyncio.sleep(_REST_S)
        finally:
            self._is_waiting = False
