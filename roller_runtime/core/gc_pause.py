"""Pauses the cyclic garbage collector while one large object is built from many small ones."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from roller_runtime.core.fork_safe_lock import ForkSafeLock

_STATE, _LOCK = {"holders": 0, "was_enabled": False}, ForkSafeLock()


def _resume_in_forked_child() -> None:
    """Resume collection in a forked child, without collecting inherited objects."""
    # Inherited garbage may own threads that the child does not have: a destructor that waits for them (a session of
    # ONNX Runtime) would wait for ever.
    if _STATE["holders"]:
        gc.freeze()
        if _STATE["was_enabled"]:
            gc.enable()
    _STATE["holders"] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_forked_child)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause cyclic garbage collection inside the block; with nested or concurrent pauses, the last exit resumes it.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    with _LOCK:
        if not _STATE["holders"]:
            _STATE["was_enabled"] = gc.isenabled()
            gc.disable()
        _STATE["holders"] += 1
    try:
        yield
    finally:
        with _LOCK:
            _STATE["holders"] = max(0, _STATE["holders"] - 1)
            if not _STATE["holders"] and _STATE["was_enabled"]:
                gc.enable()
