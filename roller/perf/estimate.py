"""Estimate: what the micro performance model says of one program, with every term."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A predicted time and why.

    Parameters
    ----------
    seconds
        Predicted seconds of one call.
    bottleneck
        Name of the term that bounds it.
    term_items
        ``((name, value), ...)``; names end in their unit (``_s``, ``_bytes``, ``_flops`` or none for counts).
    """

    seconds: float
    bottleneck: str
    term_items: tuple[tuple[str, float], ...] = ()

    @cached_property
    def terms(self) -> dict[str, float]:
        """Every term by name."""
        return dict(self.term_items)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        return {"seconds": self.seconds, "bottleneck": self.bottleneck, "terms": self.terms}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Estimate:
        """Rebuild an estimate from :meth:`to_dict` data."""
        return cls(data["seconds"], data["bottleneck"], tuple(data["terms"].items()))

    def __str__(self) -> str:
        """Predicted time and bottleneck."""
        return f"predicted {self.seconds * 1e3:.4g} ms, bound by {self.bottleneck}"
