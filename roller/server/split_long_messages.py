"""Splits long messages between server and process into short ones, so that none blocks the event loop for long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

#: Approximate number of values in a part.
_PART_VALUES = 2000


def split_message(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the long lists of a message in parts, and finally the message with an empty list in place of each.

    Examples
    --------
    >>> [*split_message({"id": 1})]
    [{'id': 1, 'parts': 0}]
    >>> first, last = split_message({"data": {"rows": [0] * 2001}})
    >>> first["part"], first["path"], len(first["rows"]), last
    (0, ['data', 'rows'], 2001, {'data': {'rows': []}, 'parts': 1})
    """
    lists: list[tuple[list[str], Sequence[Any]]] = []
    rest = _without_long_lists(message, [], lists)
    count = 0
    for path, rows in lists:
        for some in _split_long_list(rows):
            yield {"part": count, "path": path, "rows": some}
            count += 1
    yield {**rest, "parts": count}


class MessageJoiner:
    """Reassembles messages that :func:`split_message` has split."""

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[str], Sequence[Any]]] = []

    def take(self, said: dict[str, Any]) -> dict[str, Any] | None:
        """Take one part; return the message if this part completes it, otherwise ``None``."""
        if "part" in said:
            if said["part"] == 0:
                self._parts = []  # drop parts of an incomplete message
            if said["part"] != len(self._parts):
                raise ValueError("a part is missing")
            self._parts.append((said["path"], said["rows"]))
            return None
        parts, self._parts = self._parts, []
        count = said.pop("parts", 0)
        if count == 0:
            return said
        if count != len(parts):
            raise ValueError("a part is missing")
        try:
            for path, rows in parts:
                place: Any = said
                for name in path:
                    place = place[name]
                place.extend(rows)
        except (LookupError, TypeError, AttributeError):
            raise ValueError("a part has no place") from None
        return said


def _without_long_lists(value: Any, path: list[str], lists: list[tuple[list[str], Sequence[Any]]]) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_long_lists(part, [*path, str(name)], lists) for name, part in value.items()}
    if isinstance(value, (list, tuple)) and _count_values(value, _PART_VALUES) > _PART_VALUES:
        lists.append((path, value))
        return []
    return value


def _split_long_list(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    begin, count = 0, 0
    for number, row in enumerate(rows):
        count += _count_values(row, _PART_VALUES)
        if count > _PART_VALUES:
            yield rows[begin : number + 1]
            begin, count = number + 1, 0
    if begin < len(rows):
        yield rows[begin:]


def _count_values(value: Any, most: int) -> int:
    """Count the numbers and texts in a value; stop counting above ``most``."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return 1
    count = 1
    for part in value:
        count += _count_values(part, most - count)
        if count > most:
            break
    return count
