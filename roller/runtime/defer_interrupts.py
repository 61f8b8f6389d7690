"""Defers interrupts (Ctrl-C) that Python would lose during a fork."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer interrupts of the main thread during this block; deliver the first one at its end.

    Examples
    --------
    >>> import os, signal
    >>> try:
    ...     with interrupts_deferred():
    ...         os.kill(os.getpid(), signal.SIGINT)
    ...         print("whole")
    ... except KeyboardInterrupt:
    ...     print("then interrupted")
    whole
    then interrupted
    """
    # A fork runs at-fork hooks, e.g. of logging, and Python prints and drops exceptions raised in them. A signal that
    # arrives while a large process is copied was mostly lost there. The child also starts in the block: an interrupt
    # must not end it with a traceback before it has set its own handler.
    handler = signal.getsignal(signal.SIGINT)
    # Other threads receive no interrupts; ignored or fatal interrupts need no deferral.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    caught: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if caught:
            handler(*caught[0])
