"""A lock that a forked process can take, whoever held it when the process was forked."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref


class ForkSafeLock:
    """A reentrant lock, free in a forked process: the thread that held it does not run there.

    The guarded data must be valid after every single statement, because the fork may come between any two.

    Examples
    --------
    >>> with ForkSafeLock() as lock:
    ...     lock.acquire(blocking=False)
    True
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, or return ``False`` if another thread holds it and ``blocking`` is ``False``."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Release the lock."""
        with contextlib.suppress(RuntimeError):  # taken before this process was forked
            self._lock.release()

    def __enter__(self) -> ForkSafeLock:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def renew(self) -> None:
        """Replace the lock by a free one."""
        self._lock = threading.RLock()


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_LOCKS):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
