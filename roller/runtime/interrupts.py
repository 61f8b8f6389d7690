"""Interrupts (Ctrl-C) that arrive where Python would lose them, kept until they can be raised."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back interrupts of the main thread within the block; the first of them is delivered at its end.

    A fork runs the at-fork hooks of all modules, ``logging`` among them, and Python prints and forgets what is raised
    in one. A signal that arrives while a large process is copied is delivered right there, so it was lost more often
    than not. The child begins within the block too: an interrupt must not end it with a traceback before it has
    chosen what to do about them.

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
    handler = signal.getsignal(signal.SIGINT)
    # Other threads raise nothing; where interrupts are ignored, or end the process at once, nothing can be lost.
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
