"""Chooses operators whose ids match the patterns given by ``--filter``."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from roller.errors import RollerError, counted, did_you_mean

#: Maximum number of ids named in an error.
_SHOWN = 5


def filter_ids(ids: Sequence[str], pattern: str, where: str, error: type[RollerError]) -> list[str]:
    """Return the ids that match any of the comma-separated patterns, in the order of the ids; ignore empty patterns.

    Examples
    --------
    >>> filter_ids(["M0", "M1", "C10"], "M1, C*,", "operators.yaml", RollerError)
    ['M1', 'C10']
    """
    patterns = [p.strip() for p in pattern.split(",") if p.strip()]
    if not patterns:
        raise error(f"--filter: expected ids or patterns such as 'M*,C1?', got '{pattern}'. Leave it out for all.")
    for p in patterns:
        if not any(fnmatch.fnmatchcase(i, p) for i in ids):
            hint = did_you_mean(p, ids) or f". The first of them are {', '.join(ids[:_SHOWN])}."
            raise error(f"--filter: '{p}' matches none of {counted(len(ids), 'operator')} of {where}{hint}")
    return [i for i in ids if any(fnmatch.fnmatchcase(i, p) for p in patterns)]
