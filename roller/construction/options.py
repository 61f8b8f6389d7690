"""ConstructOptions: every mechanism of the construction can be switched off (the papers' ablations)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roller.errors import RollerError

#: Part of a candidate's identity: raise it when a template changes what a program means.
TEMPLATE_VERSION = 2
POLICIES = ("roller",)


@dataclass(frozen=True)
class ConstructOptions:
    """How to construct.

    Parameters
    ----------
    top_k
        Programs to keep, best estimate first.
    shrink
        Shrink block tiles when there are too few blocks to fill the device.
    axis_fusion
        Fuse axes that are adjacent, or both absent, in every tensor.
    axis_grouping
        Consider the grouped form (implicit GEMM) besides the plain one.
    epsilon
        Largest padded waste of an axis, ``((S - N % S) % S) / N``; what is padded is priced.
    split_k
        Consider splitting the reduction over blocks when blocks are few.
    units
        Build for this many units of the device; ``None`` for all.
    policy
        Construction policy.
    pool
        Distinct programs to price at most, per canonical form.
    """

    top_k: int = 10
    shrink: bool = True
    axis_fusion: bool = True
    axis_grouping: bool = True
    epsilon: float = 1.0
    split_k: bool = True
    units: int | None = None
    policy: str = "roller"
    pool: int = 8192

    def __post_init__(self) -> None:
        """Reject values no construction can honour."""
        if not isinstance(self.top_k, int) or self.top_k < 1:
            raise RollerError(f"ConstructOptions.top_k: expected an integer of at least 1, got {self.top_k!r}.")
        if not self.epsilon >= 0.0:
            raise RollerError(f"ConstructOptions.epsilon: expected a value of at least 0, got {self.epsilon!r}.")
        if self.units is not None and self.units < 1:
            raise RollerError(f"ConstructOptions.units: expected at least 1 unit or None, got {self.units!r}.")
        if self.policy not in POLICIES:
            raise RollerError(f"ConstructOptions.policy: expected one of {POLICIES}, got {self.policy!r}.")
        if self.pool < self.top_k:
            raise RollerError(f"ConstructOptions.pool: expected at least top_k={self.top_k}, got {self.pool!r}.")

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return asdict(self)
