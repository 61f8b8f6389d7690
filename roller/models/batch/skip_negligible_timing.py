"""Skips the timing of candidates and kernels if it would not change the speed of the model measurably.

Timing another candidate has an expected gain, weighted by the kernel's share of the model. The smallest gains, up to a
total of :data:`LOSS`, are given up, and their candidates are not built. The kernels left with one candidate are noted
next to the cache, because a compilation from the cache predicts nothing.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path

from roller.hardware import DeviceSpec
from roller.models.batch.kernel_jobs import Job
from roller.models.batch.similar_kernel_correction import (
    kernel_family_by_position,
    misprediction_form_by_position,
    similarity_key,
)
from roller.runtime.small_result_cache import read_small_result, write_small_result

#: Expected relative loss of speed from all untimed candidates together: about the resolution of timing a model.
LOSS = 0.01


def mark_negligible(jobs: Sequence[Job], spec: DeviceSpec, others_s: float) -> None:
    """Remove candidates not worth timing from constructed jobs; a job with only one candidate left is not timed."""
    # Similar kernels are timed for each other: they keep the same families, valued by their common gain.
    groups: dict[Hashable, list[Job]] = defaultdict(list)
    for job in jobs:
        if len(job.first) > 1 and job.options.top_k == "auto":
            groups[similarity_key(job) or job.digest].append(job)
    left_s = LOSS * (others_s + sum(j.share_s for j in jobs))
    rivals = [_TimedFamilies(alike, spec) for alike in groups.values()]
    waiting = [(r.least_gain_s, n) for n, r in enumerate(rivals)]
    heapq.heapify(waiting)
    while waiting and (left_s := left_s - waiting[0][0]) >= 0:
        _, n = heapq.heappop(waiting)
        if rivals[n].drop_least_gain_family():
            heapq.heappush(waiting, (rivals[n].least_gain_s, n))


class _TimedFamilies:
    """Kernel families of similar kernels, in order of predicted time."""

    def __init__(self, jobs: Sequence[Job], spec: DeviceSpec) -> None:
        self._spec = spec
        #: Each job with the families of its candidates that are worth timing.
        self._jobs = [(job, kernel_family_by_position(job)) for job in jobs]
        seconds = defaultdict[Hashable, float](float)
        for job, families in self._jobs:
            for n, family in families.items():
                seconds[family] += job.uses * job.candidates[n].estimate.seconds
        self._kept = sorted(seconds, key=lambda f: seconds[f])  # of equals, the one found first comes first

    @property
    def least_gain_s(self) -> float:
        """Smallest expected gain of timing one of the families, in seconds per call."""
        return self._least_gain_family[0]

    @cached_property
    def _least_gain_family(self) -> tuple[float, int]:
        """The smallest gain and its family's negated position (never the first; of equal gains, the last)."""
        all_s = self._expected_s(self._kept)
        without = (self._expected_s([*self._kept[:n], *self._kept[n + 1 :]]) for n in range(1, len(self._kept)))
        return min((max(0.0, s - all_s), -n) for n, s in enumerate(without, 1))

    def drop_least_gain_family(self) -> bool:
        """Drop the family with the smallest gain; return whether several are left."""
        del self._kept[-self._least_gain_family[1]]
        del self._least_gain_family
        choice = len(self._kept) > 1
        for job, families in self._jobs:
            if choice:
                job.first = tuple(n for n in job.first if families[n] in self._kept)
            else:
                job.light = True
        return choice

    def _expected_s(self, kept: Sequence[Hashable]) -> float:
        from roller.construction.worth_timing import expected_seconds_of_fastest

        total_s = 0.0
        for job, families in self._jobs:
            held = [n for n, family in families.items() if family in kept]
            seconds = [job.candidates[n].estimate.seconds for n in held]
            total_s += job.uses * expected_seconds_of_fastest(
                seconds, self._spec, [misprediction_form_by_position(job)[n] for n in held]
            )
        return total_s


def mark_jobs_noted_negligible(folder: Path, jobs: Sequence[Job]) -> None:
    """Mark the jobs that the first compilation of this model found negligible."""
    noted = read_small_result(folder, _note_name(jobs)).get("light", ())
    light = set(noted) if isinstance(noted, list) and all(isinstance(d, str) for d in noted) else set[str]()
    for job in jobs:
        job.light = job.digest in light


def note_negligible_jobs(folder: Path, jobs: Sequence[Job]) -> None:
    """Record which jobs of a model are negligible."""
    write_small_result(folder, _note_name(jobs), {"light": sorted(j.digest for j in jobs if j.light)})


def _note_name(jobs: Sequence[Job]) -> str:
    lines = sorted(f"{j.digest} {j.uses}" for j in jobs)
    return hashlib.sha256("\n".join(["light", *lines]).encode()).hexdigest()
