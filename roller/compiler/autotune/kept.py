"""Candidates as the cache keeps them, and as construction has them."""

from __future__ import annotations

from collections.abc import Sequence

from roller.construction.constructor import Candidate
from roller.perf.estimate import Estimate
from roller.runtime.cache_entry import CachedCandidate


def candidates_of(kept: Sequence[CachedCandidate]) -> tuple[Candidate, ...]:
    """Return candidates that the cache kept."""
    return tuple(
        Candidate(c.id, c.program, Estimate.from_dict(c.estimate), c.status, c.measured_s, c.reason, c.proved)
        for c in kept
    )
