"""Reuse distances of a step's tensors: the bytes touched since the last access to each tensor."""

from __future__ import annotations

from collections import OrderedDict

#: Maximum number of storages whose order is recorded.
_MOST_STORAGES = 4096


class AccessHistory:
    """Storages in the order of their last access."""

    def __init__(self, horizon_bytes: float) -> None:
        # A storage with a reuse distance beyond the horizon is in no cache.
        self._horizon = horizon_bytes
        self._last: OrderedDict[int, float] = OrderedDict()
        self._before: dict[int, int] = {}

    def reuse_distance_bytes(self, storage: int, size_bytes: float) -> float:
        """Return the reuse distance of a storage, including its own bytes; infinity if no cache holds it.

        Examples
        --------
        >>> found = AccessHistory(100)
        >>> for n in (1, 2, 3):
        ...     found.record_access(n, 30)
        >>> found.reuse_distance_bytes(2, 30), found.reuse_distance_bytes(9, 30)
        (60.0, inf)
        """
        known = storage if storage in self._last else self._before.get(storage, storage)
        if known not in self._last:
            return float("inf")
        passed = float(size_bytes)
        for number in reversed(self._last):
            if number == known or passed > self._horizon:
                break
            passed += self._last[number]
        return passed if passed <= self._horizon else float("inf")

    def record_access(self, storage: int, size_bytes: float) -> None:
        """Record a read or write of a storage."""
        self._last.pop(self._before.pop(storage, storage), None)
        self._last.pop(storage, None)
        self._last[storage] = size_bytes
        if len(self._last) > _MOST_STORAGES:
            self._last.popitem(last=False)

    def record_address_reuse(self, storage: int, before: int) -> None:
        """Record that a storage takes over the address, and therefore the cache lines, of an earlier storage."""
        self._before[storage] = self._before.get(before, before)
