"""Where the tensors of a step lie when an operator comes to them: by the bytes that were touched since."""

from __future__ import annotations

from collections import OrderedDict

#: Storages that are remembered.
_MOST_STORAGES = 4096


class Touched:
    """Storages in the order they were last touched.

    Parameters
    ----------
    horizon_bytes
        Bytes behind which nothing is in any cache.
    """

    def __init__(self, horizon_bytes: float) -> None:
        self._horizon = horizon_bytes
        self._last: OrderedDict[int, float] = OrderedDict()
        self._before: dict[int, int] = {}

    def distance_bytes(self, storage: int, size_bytes: float) -> float:
        """Return the bytes touched since a storage was, with its own; infinity where it is in no cache.

        Examples
        --------
        >>> found = Touched(100)
        >>> for n in (1, 2, 3):
        ...     found.touch(n, 30)
        >>> found.distance_bytes(2, 30), found.distance_bytes(9, 30)
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

    def touch(self, storage: int, size_bytes: float) -> None:
        """Say that a storage was read or written."""
        self._last.pop(self._before.pop(storage, storage), None)
        self._last.pop(storage, None)
        self._last[storage] = size_bytes
        if len(self._last) > _MOST_STORAGES:
            self._last.popitem(last=False)

    def take_over(self, storage: int, before: int) -> None:
        """Say that a storage lies where another one did, whose lines it finds."""
        self._before[storage] = self._before.get(before, before)
