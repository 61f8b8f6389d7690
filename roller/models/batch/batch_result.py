"""Result of compiling a batch of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from roller.artifact import KernelArtifact
from roller.errors import NoCandidateError
from roller.runtime.candidate_records import Record, grouped_reasons
from roller_runtime.core.display import one_line_repr


@dataclass(frozen=True)
class BatchResult:
    """Artifacts, failure reasons and origins, each by kernel key; and the batch's compile time in seconds.

    Parameters
    ----------
    origins
        ``"cached"``, ``"compiled"``, or ``"predicted"`` if the budget ended before other candidates were tried.
    """

    artifacts: Mapping[str, KernelArtifact]
    failures: Mapping[str, str]
    origins: Mapping[str, str]
    seconds: float

    def __repr__(self) -> str:
        """Return the numbers of kernels by origin on one line."""
        counts = (f"{n} {origin}" for origin, n in sorted(Counter(self.origins.values()).items()))
        return one_line_repr("Batch", *counts, f"{len(self.failures)} failed")

    def count(self, origin: str) -> int:
        """Return the number of kernels with the given origin."""
        return sum(o == origin for o in self.origins.values())

    @property
    def failure_reasons_text(self) -> str:
        """Failure reasons, grouped, without a remedy or a final full stop."""
        reasons = {key: why.partition(" Try a larger top_k")[0].rstrip(".") for key, why in self.failures.items()}
        return grouped_reasons(Record(key, "failed", why) for key, why in reasons.items())

    def raise_if_any_failed(self, name: str, device: str) -> None:
        """Raise :class:`NoCandidateError` with the grouped reasons if a kernel failed."""
        if not self.failures:
            return
        kept = f" The other {len(self.artifacts)} are in the cache." if self.artifacts else ""
        raise NoCandidateError(
            f"{name} on {device}: {len(self.failures)} of {len(self.failures) + len(self.artifacts)} kernels have no "
            f"candidate that works: {self.failure_reasons_text}.{kept} Try a larger top_k, or report the kernels."
        )
