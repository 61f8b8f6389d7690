"""A dictionary that keeps the values that were used last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from roller_runtime.core.fork_safe_lock import ForkSafeLock

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """The ``most`` values that were used last, and at most as many others, by key.

    Threads may share it. A value must not be ``None``.

    Parameters
    ----------
    most
        Number of values that stay; it may change.
    before_drop
        Called before values are dropped.

    Examples
    --------
    >>> squares = RecentlyUsed(most=2)
    >>> for n in (1, 2, 3, 1, 4, 5):
    ...     if squares.get(n) is None:
    ...         squares.put(n, n * n)
    >>> [n in squares for n in (1, 2, 3, 4, 5)]
    [True, False, True, True, True]
    """

    def __init__(self, most: int, before_drop: Callable[[], object] | None = None) -> None:
        self.most, self._before_drop = most, before_drop
        # Two generations: when the newer one is full, the older one is dropped. The common call reads one dictionary,
        # without the lock.
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}
        self._lock = ForkSafeLock()

    def get(self, key: K) -> V | None:
        """Return a value, which is then among the most recent; ``None`` if there is none."""
        found = self._newer.get(key)
        return self._promote(key) if found is None and self._older else found

    def _promote(self, key: K) -> V | None:
        with self._lock:  # another thread may have cleared or promoted it
            found = self._newer.get(key)
            if found is None and (found := self._older.get(key)) is not None:
                self.put(key, found)
            return found

    def put(self, key: K, value: V) -> None:
        """Store a value; drop others if there are too many."""
        with self._lock:
            if len(self._newer) >= self.most and key not in self._newer:
                if self._before_drop is not None:
                    self._before_drop()
                self._older = self._newer
                self._newer = {}
            self._newer[key] = value

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._older = {}
            self._newer = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._newer.keys() | self._older.keys())

    def __contains__(self, key: K) -> bool:
        """Return whether there is a value."""
        return key in self._newer or key in self._older
