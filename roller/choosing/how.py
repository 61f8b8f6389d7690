"""How a kernel is chosen from its candidates; part of what a cached kernel is found by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roller.errors import RollerError


@dataclass(frozen=True)
class How:
    """Choose by time or by prediction.

    Parameters
    ----------
    deterministic
        Time nothing: the best prediction that builds and is correct.
    refine_s
        Seconds of local search around the fastest one; 0 for none.
    """

    deterministic: bool = False
    refine_s: float = 0.0

    def __post_init__(self) -> None:
        """Reject what contradicts itself."""
        if not isinstance(self.deterministic, bool):
            raise RollerError(f"deterministic: expected True or False, got {self.deterministic!r}.")
        number = isinstance(self.refine_s, (int, float)) and not isinstance(self.refine_s, bool)
        if not number or not 0 <= self.refine_s < float("inf"):
            raise RollerError(f"refine_s: expected seconds of at least 0, or None, got {self.refine_s!r}.")
        if self.deterministic and self.refine_s:
            raise RollerError(
                f"refine_s: expected none beside deterministic=True, which times nothing, got {self.refine_s:g} s. "
                "Leave one of them away."
            )

    def identity(self) -> dict[str, Any]:
        """Return as plain data what decides the kernel besides the options of its construction."""
        return {"how": [self.deterministic, float(self.refine_s)]} if self != How() else {}
