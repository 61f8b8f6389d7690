"""What a wrong word on the command line raises."""

from __future__ import annotations

from roller.errors import RollerError


class UsageError(RollerError, ValueError):
    """The words of a command are wrong: an option's value has the wrong form, or is none it takes."""
