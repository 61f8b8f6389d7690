"""Error for incorrect usage of the command line."""

from __future__ import annotations

from roller.errors import RollerError


class UsageError(RollerError, ValueError):
    """Raised if an option or argument has a wrong form, or a value that the command does not accept."""
