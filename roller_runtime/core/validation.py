"""Checks the arguments of public functions and converts them to plain Python values."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roller_runtime.errors import LaunchError, RollerError, did_you_mean, shown

#: Maximum length, in bytes, of a file name and of a whole path.
_MOST_NAME, _MOST_PATH = 255, 4096
#: Largest count: the largest 64-bit signed integer.
MOST = 2**63 - 1


def is_integer(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer; booleans do not count.

    >>> [is_integer(v) for v in (3, np.int8(3), True, 3.0, np.array(3))]
    [True, True, False, False, False]
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def validate_flag(
    value: Any, where: str, *, error: type[RollerError] = RollerError, remedy: str = "Write either."
) -> bool:
    """Return ``value`` as a bool if it is a boolean; otherwise raise an error.

    >>> validate_flag(3, "cache")
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: cache: expected True or False, got 3. Write either.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise error(f"{where}: expected True or False, got {shown(value)}. {remedy}")


def validate_integer(
    value: Any, where: str, least: int = 0, most: int = MOST, *, expected: str = "", remedy: str = "",
    error: type[RollerError] = RollerError,
) -> int:  # fmt: skip
    """Return ``value`` as an int if it is an integer from ``least`` to ``most``; otherwise raise an error.

    ``expected`` overrides the wording of the error.

    >>> validate_integer(np.int32(7), "seed"), validate_integer(10**5000, "k", 1, 9)
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: k: expected an integer of at least 1 and at most 9, got an integer of 16610 bits.
    """
    if is_integer(value) and least <= value <= most:
        return int(value)
    limit = f" and at most {most}" if is_integer(value) and value > most else ""
    wanted = expected or f"an integer of at least {least}"
    raise error(f"{where}: expected {wanted}{limit}, got {shown(value)}.{remedy and ' '}{remedy}")


def validate_threads(threads: object, discrete: bool) -> int:
    """Return ``threads`` if it is a valid number; raise an error otherwise, and always for a ``discrete`` device.

    >>> validate_threads(2, False)
    2
    >>> validate_threads(2, True)
    Traceback (most recent call last):
    roller_runtime.errors.LaunchError: threads: expected none for a GPU, whose calls use no threads. Leave it out.
    """
    count = validate_integer(
        threads, "threads", 1, expected="a whole number of at least 1", remedy="Leave it out for the default.",
        error=LaunchError,
    )  # fmt: skip
    if discrete:
        raise LaunchError("threads: expected none for a GPU, whose calls use no threads. Leave it out.")
    return count


def validate_number(
    value: Any, where: str, *, above: float | None = None, infinite: bool = False, expected: str, remedy: str = "",
    error: type[RollerError] = RollerError,
) -> float:  # fmt: skip
    """Return ``value`` as a float if it is at least 0 or, if given, above ``above``; otherwise raise an error.

    Infinity is valid only with ``infinite``.

    >>> validate_number(np.float32(0.5), "refine_s", expected="seconds of at least 0")
    0.5
    >>> validate_number(10**5000, "refine_s", expected="seconds of at least 0")
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: refine_s: expected seconds of at least 0, got an integer of 16610 bits.
    """
    if is_integer(value) or isinstance(value, (float, np.floating)):
        try:
            plain = float(value)
        except OverflowError:  # an integer beyond all floats
            plain = math.inf
        known = math.isfinite(plain) or (infinite and plain == value)  # an integer that overflows is not infinite
        if known and (plain >= 0.0 if above is None else plain > above):
            return plain
    raise error(f"{where}: expected {expected}, got {shown(value)}.{remedy and ' '}{remedy}")


def validate_choice(value: Any, where: str, known: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``known``; otherwise raise an error.

    >>> validate_choice("gpuu", "kind", ("cpu", "gpu"))
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: kind: expected one of ('cpu', 'gpu'), got 'gpuu'; did you mean 'gpu'?
    """
    words = tuple(known)
    if isinstance(value, str) and value in words:
        return value
    hint = (did_you_mean(value, words) if isinstance(value, str) else "") or "."
    raise RollerError(f"{where}: expected one of {words}, got {shown(value)}{hint}")


def validate_path(value: Any, where: str, *, error: type[RollerError] = RollerError, what: str = "a path") -> Path:
    """Return ``value`` as a path if it is a valid path, existing or not; otherwise raise an error.

    >>> validate_path("a/b", "path").name
    'b'
    >>> validate_path(None, "path")
    Traceback (most recent call last):
    roller_runtime.errors.RollerError: path: expected a path (text or pathlib.Path), got None.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise error(f"{where}: expected {what} (text or pathlib.Path), got {shown(value)}.")
    if not _is_valid_file_name(text):
        raise error(f"{where}: expected {what} that a file system can name, got {shown(text)}.")
    return Path(text)


def parse_call_sizes(
    where: str, ends: Mapping[str, tuple[int, int]], values: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, int]:
    """Return the sizes, by name, that ``at(*values, **named)`` gives; their ranges are not checked.

    >>> parse_call_sizes("matmul", {"i": (1, 9), "j": (1, 9)}, (3,), {"j": 4})
    {'i': 3, 'j': 4}
    >>> parse_call_sizes("matmul", {"i": (1, 9)}, (3,), {"i": 4})
    Traceback (most recent call last):
    roller_runtime.errors.LaunchError: matmul: expected one whole number for each of ['i'], got at(3, i=4). Use at(i=1).
    """
    names = list(ends)
    said = [*names[: len(values)], *named]
    whole = all(map(is_integer, (*values, *named.values())))
    if len(values) > len(names) or sorted(said) != sorted(names) or not whole:
        given = ", ".join([*map(shown, values), *(f"{n}={shown(x)}" for n, x in named.items())])
        raise LaunchError(
            f"{where}: expected one whole number for each of {names}, got at({given}). "
            f"Use at({', '.join(f'{n}={low}' for n, (low, _) in ends.items())})."
        )
    found = {**dict(zip(names, values, strict=False)), **named}
    return {n: int(found[n]) for n in names}


def _is_valid_file_name(text: str) -> bool:
    """Return whether the file system can represent the name at all, given its length and encoding."""
    try:
        name = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return len(name) < _MOST_PATH and max(map(len, name.split(os.fsencode(os.sep)))) <= _MOST_NAME
