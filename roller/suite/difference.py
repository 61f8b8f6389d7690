"""The difference between two runs of the suite: rows that changed by more than the measured noise, and missing rows."""

# Times are compared by the logarithms of process means. Their noise is the scatter between the processes of a run
# (``--repeat``), pooled over all models. With one process per model, only the smaller noise within a process is known.

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roller.suite.mean_interval import (
    LEAST_ROUNDS,
    MeanInterval,
    paired_ratio,
    ratio_interval,
    student_quantile,
)
from roller.suite.run_file import SuiteRun, flatten_mapping, row_keys

#: Probability that at least one row of two equal runs is reported as slower, and likewise as faster.
ALPHA = 0.01
#: Smallest reported change of predicted times, which have no noise.
PREDICTED = 1e-3
#: Assumed degrees of freedom of the variance pooled over all models, when it moderates a single model's variance.
_MODERATION = 10
Key = tuple[str, int, str, str]


@dataclass(frozen=True)
class RowDifference:
    """A row that both runs have.

    Parameters
    ----------
    model, batch, kind, device
        Key of the row.
    ratio
        Iteration time after the change divided by the time before, with its confidence interval; ``None`` if not
        compared.
    verdict
        ``"slower"``, ``"faster"``, ``"same"`` (within noise) or ``"not compared"``.
    """

    model: str
    batch: int
    kind: str
    device: str
    ratio: MeanInterval | None
    verdict: str
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        low, high = (None, None) if self.ratio is None else (self.ratio.lower, self.ratio.upper)
        return {
            "model": self.model, "batch": self.batch, "kind": self.kind, "device": self.device,
            "time_ratio": None if self.ratio is None else self.ratio.mean, "lower": low, "upper": high,
            "verdict": self.verdict, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class RunDifference:
    """The difference between two runs.

    Parameters
    ----------
    only_before, only_after
        Keys of rows in only one of the runs.
    environment
        Maps each setting that differs to its values before and after.
    """

    rows: tuple[RowDifference, ...]
    only_before: tuple[Key, ...]
    only_after: tuple[Key, ...]
    environment: Mapping[str, tuple[Any, Any]] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def regressions(self) -> tuple[RowDifference, ...]:
        """Rows that became slower."""
        return tuple(row for row in self.rows if row.verdict == "slower")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return {
            "rows": [row.to_dict() for row in self.rows], "only_before": [list(key) for key in self.only_before],
            "only_after": [list(key) for key in self.only_after],
            "environment": {name: list(values) for name, values in self.environment.items()},
            "notes": list(self.notes),
        }  # fmt: skip


def difference(before: SuiteRun, after: SuiteRun, *, alpha: float = ALPHA) -> RunDifference:
    """Compare two runs.

    Parameters
    ----------
    alpha
        Probability that at least one unchanged row is reported as slower (Bonferroni bound).
    """
    old, new = (dict(zip(row_keys(run.rows), run.rows, strict=True)) for run in (before, after))
    both = [key for key in old if key in new]
    comparer = _RowComparer([(old[key], new[key]) for key in both], alpha)
    rows = tuple(comparer.compare_rows(key, old[key], new[key]) for key in both)
    return RunDifference(
        rows, tuple(key for key in old if key not in new), tuple(key for key in new if key not in old),
        _environment_differences(before, after), comparer.notes,
    )  # fmt: skip


def _environment_differences(before: SuiteRun, after: SuiteRun) -> dict[str, tuple[Any, Any]]:
    old, new = (flatten_mapping({n: v for n, v in run.head.items() if n != "date"}) for run in (before, after))
    return {n: (old.get(n), new.get(n)) for n in dict.fromkeys((*old, *new)) if old.get(n) != new.get(n)}


class _RowComparer:
    def __init__(self, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], alpha: float) -> None:
        self._pairs = [pair for pair in pairs if not _reason_not_comparable(*pair)]
        measured = [pair for pair in self._pairs if all(row["kind"] == "measured" for row in pair)]
        # alpha on either side of the interval
        self._confidence = 1 - 2 * alpha / max(1, len(measured))
        timed = [pair for pair in measured if not _are_measured_in_turns(*pair)]
        groups = [_log_mean_of_each_process(row) for pair in timed for row in pair]
        self._degrees = sum(len(group) - 1 for group in groups)
        squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1)
        self._pooled = squares / self._degrees if self._degrees else 0.0
        self.notes: tuple[str, ...] = ()
        if timed and not self._degrees:
            self.notes = (
                "Each model ran in one process: the noise is that of iterations within it, and what differs from one "
                "process to the next is not in it. Run with --repeat 5 to measure that.",
            )

    def compare_rows(self, key: Key, old: Mapping[str, Any], new: Mapping[str, Any]) -> RowDifference:
        reason = _reason_not_comparable(old, new)
        if reason:
            return RowDifference(*key, None, "not compared", reason)
        if old["kind"] == "predicted":
            ratio = new["iteration_s"] / old["iteration_s"]
            found = MeanInterval(ratio, ratio, ratio)
            return RowDifference(*key, found, _verdict_of_ratio(found, PREDICTED))
        found = self._time_ratio(old, new)
        return RowDifference(*key, found, _verdict_of_ratio(found, 0.0))

    def _time_ratio(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> MeanInterval:
        paired = paired_ratio(_paired_rounds(old, new), self._confidence)
        if paired is not None:
            return paired
        groups = [_log_mean_of_each_process(row) for row in (old, new)]
        if not self._degrees:
            return ratio_interval(old["samples_s"][0], new["samples_s"][0], self._confidence)
        change = statistics.fmean(groups[1]) - statistics.fmean(groups[0])
        # The variance of few processes is uncertain, so it is moderated by the variance over all models.
        degrees = sum(len(group) - 1 for group in groups)
        squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups if len(group) > 1)
        common = min(_MODERATION, self._degrees - degrees)
        variance = (squares + common * self._pooled) / (degrees + common)
        spread = variance * sum(1 / len(group) for group in groups)
        width = student_quantile(self._confidence, degrees + common) * math.sqrt(spread)
        return MeanInterval(math.exp(change), math.exp(change - width), math.exp(change + width))


def _log_mean_of_each_process(row: Mapping[str, Any]) -> list[float]:
    return [math.log(statistics.fmean(own)) for own in row["samples_s"]]


def _are_measured_in_turns(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    first, second = (row.get("pair") or {} for row in (old, new))
    if not first or first.get("id") != second.get("id"):
        return False
    return [len(own) for own in first["rounds_s"]] == [len(own) for own in second["rounds_s"]]


def _paired_rounds(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    if not _are_measured_in_turns(old, new):
        return []
    groups = zip(old["pair"]["rounds_s"], new["pair"]["rounds_s"], strict=True)
    return [list(zip(*both, strict=True)) for both in groups]


def _reason_not_comparable(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if not _are_measured_in_turns(old, new):
        return _reason_row_unusable(old) or _reason_row_unusable(new)
    least = min((len(rounds) for rounds in _paired_rounds(old, new)), default=0)
    return "" if least >= LEAST_ROUNDS else f"it has {least} undisturbed rounds, and needs {LEAST_ROUNDS}"


def _reason_row_unusable(row: Mapping[str, Any]) -> str:
    if row["kind"] == "predicted":
        return "" if row.get("iteration_s") else "it does not fit"
    return (
        "" if row.get("is_stable") and all(len(own) > 1 for own in row.get("samples_s") or [()]) else "it was unstable"
    )


def _verdict_of_ratio(ratio: MeanInterval, least: float) -> str:
    if ratio.lower > 1 + least:
        return "slower"
    return "faster" if ratio.upper < 1 - least else "same"


def difference_notes(found: RunDifference) -> Iterator[str]:
    """Yield sentences on environments, missing rows and noise."""
    for name, (old, new) in found.environment.items():
        yield f"{name}: {old} before, {new} after"
    for word, keys in (("before", found.only_before), ("after", found.only_after)):
        if keys:
            yield f"only {word}: {', '.join(' '.join(str(part) for part in key if part != '') for key in keys)}"
    yield from found.notes
