"""Code for another processor is refused in words."""

from __future__ import annotations

from collections.abc import Iterable

from roller.core.processor import missing
from roller.errors import LaunchError


def check_features(name: str, needed: Iterable[str]) -> None:
    """Refuse code this machine's processor cannot run: its first instruction of that kind would end the process.

    Raises
    ------
    LaunchError
        Where a feature is missing; see :mod:`roller.core.processor`.
    """
    lacking = missing(needed)
    if lacking:
        raise LaunchError(
            f"{name}: expected a processor with {', '.join(lacking)}, got one without. It is for another one: "
            "compile it on this machine, or for a device whose 'mcpu' both have."
        )
