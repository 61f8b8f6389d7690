"""The error tree of roller, and the did-you-mean helper every message uses.

A message reads ``where: expected X, got Y. Remedy.``; errors are values a user acts on, so each
class says which stage refused and none carries a traceback of TVM inside its text.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

#: Characters of one word (a name, a path, a number) an error repeats, and characters of a whole message.
_MOST_WORD, _MOST_MESSAGE = 512, 8192
#: What a message repeats of what it was given: words, and lines in quotes.
_REPEATED = (re.compile(rf"\S{{{_MOST_WORD + 1},}}"), re.compile(rf"(?<!\w)'[^'\n]{{{_MOST_WORD - 1},}}'"))
#: Digits of an integer an error repeats; Python refuses to print thousands.
_MOST_DIGITS = 40
#: Characters of a value that an error repeats.
_MOST_SHOWN = 400


#: What a terminal takes for an order, what turns the direction of a text, and what no terminal's encoding has.
_UNPRINTABLE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)


def printable(text: str) -> str:
    r"""Return a text that a terminal shows and does not obey: control characters as their escapes, lines as they are.

    Names come from files of strangers, and may hold sequences that clear the screen, set its title or its clipboard.

    Examples
    --------
    >>> printable("conv\x1b[2J")
    'conv\\x1b[2J'
    """
    return _UNPRINTABLE.sub(lambda m: repr(m[0])[1:-1], text)


def bounded(text: str) -> str:
    """Return a message of bounded length: what is left out of the middle of words, and of the whole, is counted.

    Errors repeat what they were given, and that may be a megabyte.

    Examples
    --------
    >>> bounded("got " + "x" * 1000 + "; shorten it").replace("x", "")
    'got ...(489 more)...; shorten it'
    >>> bounded("short")
    'short'
    """
    for pattern in _REPEATED:
        text = pattern.sub(lambda m: _shortened(m[0], _MOST_WORD), text)
    return _shortened(text, _MOST_MESSAGE)


def _shortened(text: str, most: int) -> str:
    """Keep the start and the end, where a remedy stands."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail]}...({len(text) - most} more)...{text[-tail:]}"


class _Shown(reprlib.Repr):
    """Prints values of any size and depth in a line: what is too long, too deep or too wide is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 16
        self.maxstring = self.maxother = _MOST_SHOWN

    def repr1(self, x: Any, level: int) -> str:
        """Return a value at a depth; what cannot be printed by its type, since that is its author's code."""
        try:
            return super().repr1(x, level)
        except Exception:  # noqa: BLE001 - its author's code, or a number within it: the error is said all the same
            return f"a {type(x).__name__}"

    def repr_int(self, x: int, level: int) -> str:
        """Return an integer; Python refuses to print thousands of digits."""
        return f"an integer of {x.bit_length()} bits" if abs(x) >= 10**_MOST_DIGITS else repr(x)

    def repr_instance(self, x: Any, level: int) -> str:
        """Return any other value in one line: NumPy prints arrays in many."""
        return _shortened(" ".join(repr(x).split()), _MOST_SHOWN)


def shown(value: object) -> str:
    """Return ``repr(value)`` for an error, in a line of bounded length.

    Examples
    --------
    >>> shown("a"), shown(7), shown(10**5000), shown({10**5000})
    ("'a'", '7', 'an integer of 16610 bits', '{an integer of 16610 bits}')
    """
    return _shortened(_Shown().repr(value), _MOST_SHOWN)


#: What taking plain data apart may end in where they are not what was written; what numbers make of it aside.
MALFORMED = (KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)


class RollerError(Exception):
    """Base of every error roller raises on purpose; its message is :func:`printable` and :func:`bounded`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(bounded(printable(a)) if isinstance(a, str) else a for a in args))


class ExprError(RollerError, ValueError):
    """A tensor expression is malformed, symbolic, data-dependent or out of the supported family."""


class SpecError(RollerError, ValueError):
    """A device specification is unknown, malformed, or lacks a field."""


class TileError(RollerError, ValueError):
    """A tile does not fit the device, or names an axis or a layer that does not exist."""


class BuildError(RollerError, RuntimeError):
    """A candidate could not be lowered or built; carries the compiler's own text."""


class NoCandidateError(RollerError, RuntimeError):
    """No candidate survived; the reasons are grouped in the message.

    Parameters
    ----------
    message
        Why.
    wrong
        Digests of the programs whose kernels compute something else.
    """

    def __init__(self, message: str, wrong: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.wrong = wrong


class ArtifactError(RollerError, ValueError):
    """An artifact is damaged, of a newer format, or cannot be written."""


class ModelError(RollerError, ValueError):
    """A model is damaged, hostile, or holds what cannot be compiled; lists everything it refuses."""


class UnsupportedError(ModelError):
    """Nodes of a model cannot be compiled, by whatever means.

    Parameters
    ----------
    message
        All of them, with a remedy.
    model
        Name of the model.
    nodes
        ``operator 'node': reason`` for each.
    """

    def __init__(self, message: str, model: str, nodes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.model, self.nodes = model, nodes

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with everything that made it."""
        return type(self), (*self.args, self.model, self.nodes)


class RollerWarning(UserWarning):
    """Something went wrong that roller worked around; the result is right all the same. It is :func:`printable`."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(a) if isinstance(a, str) else a for a in args))


class LaunchError(RollerError, RuntimeError):
    """A kernel cannot be run here, or was called with wrong arrays."""


class EmulationError(RollerError, RuntimeError):
    """An emulated kernel misbehaved (bounds, alignment, barriers), or the emulator cannot run it."""


class EmulationTimeout(EmulationError):
    """An emulated kernel did not end in the time it was given; it did nothing wrong so far."""


def counted(number: int, what: str) -> str:
    """Return a number of things as people write it.

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
    if not isinstance(name, str) or len(name) > _MOST_WORD:  # whatever a caller passed as one
        return ""
    close = difflib.get_close_matches(name, [k for k in known if isinstance(k, str)], n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
