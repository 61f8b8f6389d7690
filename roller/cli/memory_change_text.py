"""Text of a change to a step and of its effect on memory, for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roller.insight.whatif.memory_effect import MemoryEffect

#: Longest change name in a table; --json prints the whole name.
LONGEST_NAME = 44
_MIB = 1 << 20


def memory_change_text(effect: MemoryEffect) -> str:
    """Format a change in memory with its unit, or return a short reason why the change is unknown."""
    if effect.delta_bytes is None:
        return effect.in_short
    if not effect.delta_bytes:
        return "0 MiB"
    many = abs(effect.delta_bytes) >= _MIB / 10
    return f"{effect.delta_bytes / _MIB:+.4g} MiB" if many else f"{effect.delta_bytes:+} B"
