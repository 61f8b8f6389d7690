"""Checks the options of a kernel call; all launchers share the error message."""

from __future__ import annotations

from collections.abc import Iterable

from roller.errors import LaunchError, did_you_mean


def refuse_unknown_options(name: str, label: str, given: Iterable[str], known: tuple[str, ...], remedy: str) -> None:
    """Raise an error if any unknown options were ``given``; the message adds that inputs are positional.

    Examples
    --------
    >>> refuse_unknown_options("relu", "CUDA", ["steam"], ("out", "stream"), "Leave it out.")
    Traceback (most recent call last):
    ...
    roller_runtime.errors.LaunchError: relu: expected options of a CUDA kernel ('out', 'stream'), got 'steam'; did you \
mean 'stream'? Leave it out. Inputs are positional.
    """
    names = list(given)
    if not names:
        return
    hints = [hint for hint in (did_you_mean(n, known) for n in names) if hint]
    end = hints[0] if hints else "."
    expected, got = ", ".join(map(repr, known)), ", ".join(map(repr, names))
    raise LaunchError(f"{name}: expected options of a {label} kernel ({expected}), got {got}{end} {remedy} "
                      "Inputs are positional.")  # fmt: skip
