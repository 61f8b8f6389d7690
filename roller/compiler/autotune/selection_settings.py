"""How a kernel is selected from its candidates; part of the cache key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roller.errors import RollerError
from roller_runtime.core.validation import validate_flag, validate_number


@dataclass(frozen=True)
class Selection:
    """Selection by measured time or by prediction."""

    deterministic: bool = False  #: Whether to take the best-predicted correct candidate without timing
    refine_s: float = 0.0  #: Duration, in seconds, of the local search around the fastest candidate; 0 for none

    def __post_init__(self) -> None:
        """Validate the values and reject contradictory ones."""
        object.__setattr__(self, "deterministic", validate_flag(self.deterministic, "deterministic"))
        seconds = validate_number(self.refine_s, "refine_s", expected="seconds of at least 0, or None")
        object.__setattr__(self, "refine_s", seconds)
        if self.deterministic and self.refine_s:
            raise RollerError(
                f"refine_s: expected none beside deterministic=True, which times nothing, got {self.refine_s:g} s. "
                "Leave one of them away."
            )

    def identity(self) -> dict[str, Any]:
        """Return the selection as plain data for the cache key; empty for the default."""
        return {"how": [self.deterministic, self.refine_s]} if self != Selection() else {}
