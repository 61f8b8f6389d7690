"""Stops a script after some time without a sign that it will begin to train."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

#: Seconds without a sign that a script is preparing to train, after which it is stopped.
PATIENCE_S = 5.0
#: Seconds between checks.
_POLL_S = 0.1


class IdleTimeout:
    """Calls a function once a script has shown no sign of preparing to train for some time.

    Signs are imports, compilations and executions of code, and calls of :meth:`sign`.

    Parameters
    ----------
    seconds
        Time without a sign after which the script is stopped.
    over
        Called with the main thread's frame, in a separate thread, when the time is over.
    """

    def __init__(self, seconds: float, over: Callable[[FrameType | None], None]) -> None:
        self._seconds, self._over = seconds, over
        self._last = time.monotonic()
        self._main = threading.get_ident()

    def start(self) -> None:
        """Start waiting."""
        sys.addaudithook(self._audit)
        self.sign()
        threading.Thread(target=self._wait_until_idle, daemon=True).start()

    def sign(self) -> None:
        """Note a sign that the script is preparing to train."""
        self._last = time.monotonic()

    def _audit(self, event: str, given: object) -> None:
        if event in ("import", "exec", "compile"):
            self._last = time.monotonic()

    def _wait_until_idle(self) -> None:
        while time.monotonic() - self._last < self._seconds:
            time.sleep(_POLL_S)
        self._over(sys._current_frames().get(self._main))
