"""Records of candidates: a failure is a value, never an exception that affects other candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Statuses of a candidate and their meanings.
STATUSES = {
    "built": "compiled, not run",
    "checked": "correct, not timed",
    "measured": "correct and timed",
    "slower": "correct, dropped after one run",
    "doubtful": "correct and timed, but others disturbed that to its end",
    "wrong": "its results are outside the error bound",
    "failed": "refused by the compiler",
    "crashed": "its process died",
    "timeout": "its process took too long and was stopped",
}


@dataclass(frozen=True)
class Record:
    """Outcome of one candidate.

    Parameters
    ----------
    candidate_id
        Identity of the candidate, for example its program's digest.
    status
        One of :data:`STATUSES`.
    reason
        Reason why it failed, why its time is doubtful, or why a working candidate may still be wrong; otherwise empty.
    measured_s
        Median time per call, in seconds; ``None`` if the candidate was not timed.
    build_s
        Build time in seconds; ``None`` if the candidate was not built.
    spread_s
        Interquartile range, in seconds, of the samples of ``measured_s``, if there were several.
    tied
        Reason why a correct time does not determine its rank; empty if it does.
    """

    candidate_id: str
    status: str
    reason: str = ""
    measured_s: float | None = None
    build_s: float | None = None
    spread_s: float | None = None
    tied: str = ""

    def __post_init__(self) -> None:
        """Raise an error for an unknown status."""
        if self.status not in STATUSES:
            known = list(STATUSES)
            raise ValueError(f"record '{self.candidate_id}': unknown status '{self.status}'. Use one of {known}.")

    @property
    def ok(self) -> bool:
        """Whether the candidate passed every step that was tried."""
        return self.status in ("built", "checked", "measured", "slower", "doubtful")


def grouped_reasons(records: Iterable[Record]) -> str:
    """Return the distinct reasons of failed records with their counts, most frequent first.

    Examples
    --------
    >>> grouped_reasons([Record("a", "failed", "no linker"), Record("b", "failed", "no linker")])
    '2 x failed: no linker'
    """
    counts: dict[str, int] = {}
    for r in records:
        if not r.ok:
            first = r.reason.strip().splitlines()[0] if r.reason.strip() else "no reason given"
            counts[f"{r.status}: {first}"] = counts.get(f"{r.status}: {first}", 0) + 1
    return "; ".join(f"{n} x {text}" for text, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))
