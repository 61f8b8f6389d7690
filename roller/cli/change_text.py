"""How changes of a step, and what they do to its memory, are printed."""

from __future__ import annotations

#: Characters of a change in a table; --json has all of it.
LONGEST_NAME = 44
_MIB = 1 << 20


def memory_delta_text(delta_bytes: int | None) -> str:
    """Return the text of a change of memory; ``"not modelled"`` of none that is known.

    Examples
    --------
    >>> [memory_delta_text(x) for x in (None, 0, -3 << 19, 1000)]
    ['not modelled', '0 MiB', '-1.5 MiB', '+1000 B']
    """
    if delta_bytes is None:
        return "not modelled"
    if not delta_bytes:
        return "0 MiB"
    return f"{delta_bytes / _MIB:+.4g} MiB" if abs(delta_bytes) >= _MIB / 10 else f"{delta_bytes:+} B"
