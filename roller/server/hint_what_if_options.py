"""Converts the changes in hints to options of ``roller whatif``."""

from __future__ import annotations

import re

from roller.errors import RollerError
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option
from roller.insight.whatif.whatifs import WHATIFS

_ONE = re.compile(r"(\w+)\((.*)\)")


def what_if_options_of_hint(change: str) -> list[str]:
    """Return a hint's change as options of ``roller whatif --do``; ``[]`` if no options express it exactly.

    Examples
    --------
    >>> what_if_options_of_hint("AMP() + ZeroTime(phase=optimizer)")
    ['amp', 'zero-time:phase=optimizer']
    """
    names = {kind.__name__: name for name, kind in WHATIFS.items()}
    found = []
    for part in change.split(" + "):
        match = _ONE.fullmatch(part)
        if match is None or match[1] not in names:
            return []
        parameters = match[2].replace(", ", ",")
        found.append(f"{names[match[1]]}:{parameters}" if parameters else names[match[1]])
    try:
        is_same = " + ".join(str(parse_what_if_option(option)) for option in found) == change
    except (RollerError, ValueError, TypeError):
        return []
    return found if is_same else []
