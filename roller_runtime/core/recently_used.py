"""A dictionary that drops the values that were not used recently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from roller_runtime.core.fork_safe_lock import ForkSafeLock

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """At most ``most`` values by key; of these, at least the half that was used last.

    Threads may share it. A value must not be ``None``.

    Parameters
    ----------
    most
        Maximum number of values; it may change.
    before_drop
        Called before values are dropped.

    Examples
    --------
    >>> squares = RecentlyUsed(most=4)
    >>> for n in (1, 2, 3, 1, 4, 5):
    ...     if squares.get(n) is None:
    ...         squares.put(n, n * n)
    >>> [n in squares for n in (1, 2, 3)]
    [True, False, True]
    """

    def __init__(self, most: int, before_drop: Callable[[], object] = bool) -> None:
        self.most, self._before_drop = most, before_drop
        # Two generations: when the newer one is full, the older one is dropped. The common call reads one dictionary
        # without the lock. Whatever moves values takes it, so that no value returns after :meth:`clear`.
        self._lock = ForkSafeLock()
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return a value, which is then among the most recent; ``None`` if there is none."""
        found = self._newer.get(key)
        if found is None:
            with self._lock:
                found = self._newer.get(key)  # another thread may have moved or stored it
                if found is None and (found := self._older.get(key)) is not None:
                    self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Store a value; drop others if there are too many."""
        with self._lock:
            if len(self._newer) >= max(1, self.most // 2):
                self._before_drop()
                self._older, self._newer = self._newer if self.most > 1 else {}, {}
            self._newer[key] = value

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._newer, self._older = {}, {}

    def __len__(self) -> int:
        """Return the number of values."""
        with self._lock:
            return len(self._newer.keys() | self._older.keys())

    def __contains__(self, key: K) -> bool:
        """Return whether there is a value."""
        return key in self._newer or key in self._older
