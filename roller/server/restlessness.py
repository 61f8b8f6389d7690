"""Files that change in each profile: an editor that saves a lot, or a step that writes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from roller.errors import RollerError

#: A change as soon as this after a profile may be of the profile itself.
_SOON_S = 0.5
#: Profiles cut short in a row before the next waits until the files rest, how long that is, and when to give up.
_BEFORE_WAITING, _REST_S, _MOST = 10, 1.0, 15


class Restlessness:
    """Counts profiles in a row that a change of the files cut short."""

    def __init__(self) -> None:
        self._count, self._is_waiting, self._ended_s = 0, False, 0.0

    def note_change(self, is_running: bool) -> None:
        """Note that files changed; what changes while nothing of the project runs is the work of a person."""
        if not self._is_waiting:
            is_cut = is_running or time.monotonic() - self._ended_s < _SOON_S
            self._count = self._count + 1 if is_cut else 0

    def note_end(self) -> None:
        """Note that a profile came to its end."""
        self._ended_s = time.monotonic()

    @property
    def must_wait(self) -> bool:
        """Whether the files have to rest first."""
        return self._count >= _BEFORE_WAITING

    async def rest(self, name: str, stop: Callable[[], None]) -> None:
        """Wait for as long as files have to rest; whoever sees a change meanwhile cancels this."""
        if self._count >= _MOST:
            self._count = 0
            raise RollerError(
                f"{name}: expected files that stay as they are while the step is profiled, got others each time. "
                f"If the step writes Python files of its project, let it write elsewhere."
            )
        stop()  # what runs of the project: it writes nothing while files rest
        self._is_waiting = True
        try:
            await asyncio.sleep(_REST_S)
        finally:
            self._is_waiting = False
