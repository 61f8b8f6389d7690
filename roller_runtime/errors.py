"""The exceptions that running kernels and models raises, and helpers for messages."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

#: Maximum number of characters in a repeated word (a name, a path, a number) and in a whole message.
_MOST_WORD, _MOST_MESSAGE = 512, 8192
#: Parts of a message that repeat user input: long words, and quoted lines.
_REPEATED = (re.compile(rf"\S{{{_MOST_WORD + 1},}}"), re.compile(rf"(?<!\w)'[^'\n]{{{_MOST_WORD - 1},}}'"))
#: Maximum number of digits in a printed integer; Python refuses to print thousands of them.
_MOST_DIGITS = 40
#: Maximum number of characters in a printed value.
_MOST_SHOWN = 400


#: Terminal control characters, bidirectional controls, and surrogates, which no terminal can encode.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def printable(text: str) -> str:
    r"""Return text with control characters, except tabs and line feeds, escaped so that no terminal interprets them.

    Examples
    --------
    >>> printable("conv\x1b[2J")
    'conv\\x1b[2J'
    """
    return _UNPRINTABLE.sub(lambda m: repr(m[0])[1:-1], text)


def bounded(text: str) -> str:
    """Return ``text`` with long words and an overlong middle shortened; each cut states how many characters it omits.

    Examples
    --------
    >>> bounded("got " + "x" * 1000 + "; shorten it").replace("x", "")
    'got ...(489 more)...; shorten it'
    >>> bounded("short")
    'short'
    """
    for pattern in _REPEATED:
        text = pattern.sub(lambda m: _shorten_middle(m[0], _MOST_WORD), text)
    return _shorten_middle(text, _MOST_MESSAGE)


def _shorten_middle(text: str, most: int) -> str:
    """Shorten ``text`` to its start and its end, which contains the remedy, if it exceeds ``most`` characters."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail]}...({len(text) - most} more)...{text[-tail:]}"


class _BoundedRepr(reprlib.Repr):
    """Formats values of any size and depth on one line, with parts omitted."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 16
        self.maxstring = self.maxother = _MOST_SHOWN

    def repr1(self, x: Any, level: int) -> str:
        """Return a value's text at a given depth, or its type if its own ``repr`` fails."""
        try:
            return super().repr1(x, level)
        except Exception:  # noqa: BLE001 - its author's code, or a number within it: the error is said all the same
            return f"a {type(x).__name__}"

    def repr_int(self, x: int, level: int) -> str:
        """Return an integer, or its size in bits if Python refuses to print it."""
        return f"an integer of {x.bit_length()} bits" if abs(x) >= 10**_MOST_DIGITS else repr(x)

    def repr_instance(self, x: Any, level: int) -> str:
        """Return any other value on one line; NumPy prints arrays on several lines."""
        return _shorten_middle(" ".join(repr(x).split()), _MOST_SHOWN)


def shown(value: object) -> str:
    """Return ``repr(value)`` on one line of bounded length, for error messages.

    Examples
    --------
    >>> shown("a"), shown(7), shown(10**5000), shown({10**5000})
    ("'a'", '7', 'an integer of 16610 bits', '{an integer of 16610 bits}')
    """
    return _shorten_middle(_BoundedRepr().repr(value), _MOST_SHOWN)


#: Exceptions that unpacking malformed plain data raises, other than those for invalid numbers.
MALFORMED = (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)


class RollerError(Exception):
    """Base of all errors that roller raises on purpose; messages pass through :func:`printable` and :func:`bounded`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(bounded(printable(a)) if isinstance(a, str) else a for a in args))


class NoCandidateError(RollerError, RuntimeError):
    """No candidate survived; the message groups the reasons.

    Parameters
    ----------
    message
        The reasons for failure.
    wrong
        Digests of the programs whose kernels compute wrong results.
    """

    def __init__(self, message: str, wrong: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.wrong = wrong


class ArtifactError(RollerError, ValueError):
    """An artifact is damaged, is in a newer format, or cannot be written."""


class ModelError(RollerError, ValueError):
    """A model is damaged or hostile, or cannot be compiled; the message lists every refused part."""


class RollerWarning(UserWarning):
    """A problem that roller worked around; the result is correct. The message passes through :func:`printable`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(a) if isinstance(a, str) else a for a in args))


class LaunchError(RollerError, RuntimeError):
    """A kernel cannot run here, or was called with wrong arrays."""


def counted(number: int, what: str) -> str:
    """Return ``number`` followed by ``what`` in the singular or plural.

    Examples
    --------
    >>> counted(1, "array"), counted(2, "array")
    ('1 array', '2 arrays')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or an empty string.

    Examples
    --------
    >>> did_you_mean("bandwith", ["bandwidth", "banks"])
    "; did you mean 'bandwidth'?"
    """
    if not isinstance(name, str) or len(name) > _MOST_WORD:  # callers may pass anything
        return ""
    close = difflib.get_close_matches(name, [k for k in known if isinstance(k, str)], n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
