"""Estimate: the predicted time of one program, with every term."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roller.errors import MALFORMED, ArtifactError
from roller_runtime.core.display import html_table, one_line_repr


@dataclass(frozen=True)
class Estimate:
    """Predicted time of a program, its bottleneck and its terms.

    Parameters
    ----------
    seconds
        Predicted time of one call, in seconds.
    bottleneck
        Name of the term that bounds the time.
    term_items
        ``((name, value), ...)``; names end in their unit (``_s``, ``_bytes``, ``_flops`` or none for counts).
    expected_error
        Expected error of ``seconds``: one standard deviation of ``ln(measured / seconds)``; ``None`` for estimates
        stored by older versions.
    clock_hz
        Clock rate of the arithmetic units (Hz): the device's, or a lower one under its power limit; ``None`` for
        estimates stored by older versions.

    Examples
    --------
    >>> estimate = Estimate(0.01, "compute", (), 0.1)
    >>> [f"{s:.5f}" for s in estimate.interval_s]
    ['0.00905', '0.01105']
    >>> print(estimate)
    predicted 10 ms ×/÷ 1.11, bound by compute
    """

    seconds: float
    bottleneck: str
    term_items: tuple[tuple[str, float], ...] = ()
    expected_error: float | None = None
    clock_hz: float | None = None

    @cached_property
    def terms(self) -> dict[str, float]:
        """All terms, keyed by name."""
        return dict(self.term_items)

    @property
    def interval_s(self) -> tuple[float, float]:
        """Times (seconds) one expected error below and above ``seconds``; both are ``seconds`` if it is unknown."""
        factor = math.exp(self.expected_error or 0.0)
        return self.seconds / factor, self.seconds * factor

    @property
    def spread(self) -> str:
        """The factor between ``seconds`` and either end of :attr:`interval_s` as text, or ``""``."""
        return "" if self.expected_error is None else f" ×/÷ {math.exp(self.expected_error):.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; :meth:`from_dict` is the inverse."""
        data = {"seconds": self.seconds, "bottleneck": self.bottleneck, "terms": self.terms}
        known = {"expected_error": self.expected_error, "clock_hz": self.clock_hz}
        return data | {k: v for k, v in known.items() if v is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Estimate:
        """Rebuild an estimate from :meth:`to_dict` data.

        Raises
        ------
        ArtifactError
            If a field is missing or malformed.
        """
        try:
            return cls(data["seconds"], data["bottleneck"], tuple(data["terms"].items()), data.get("expected_error"),
                       data.get("clock_hz"))  # fmt: skip
        except MALFORMED as err:
            raise ArtifactError(f"estimate: expected a serialised Estimate, got {err!r}. The file is damaged.") from err

    def __repr__(self) -> str:
        """Return a shortened form of :meth:`__str__`."""
        return one_line_repr("Estimate", str(self))

    def _repr_html_(self) -> str:
        """Return all terms as a table, for a notebook."""
        return html_table(str(self), ("term", "value"), ((n, f"{v:.6g}") for n, v in self.term_items))

    def __str__(self) -> str:
        """Return the predicted time, its error factor and the bottleneck."""
        return f"predicted {self.seconds * 1e3:.4g} ms{self.spread}, bound by {self.bottleneck}"
