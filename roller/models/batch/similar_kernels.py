"""What kernels of a model that were timed say of those like them: which of the same few kernels is the fastest.

Layers of a model differ in little: 36 convolutions of DenseNet are three kernels with other numbers of channels. What
is mispredicted of one register tile is mispredicted of it in all of them, so the first few of such *kin* are timed as
any kernel is, and what their times say of each kernel family corrects the predictions of the others. Their ratios are
then known far better, and most often one candidate is left that is worth building.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from roller.models.batch.jobs import Job

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate

#: Kernels of a kin that are timed before the others: the median of three is not one that was disturbed.
PILOTS = 3
#: Expected error (one sigma of the logarithm) of the ratio of two families in one kernel of a kin, where it is known of
#: all others: the spread over the kernels of DenseNet-121 with 28 x 28 pixels is 0.04, the errors of times included.
RATIO_ERROR = 0.05
#: One that was dropped after a run is at least so much slower than the best, and nobody knows how much.
_SLOWER = 1.3


class SimilarKernels:
    """The kernels of a batch that are alike, and what is known of them."""

    def __init__(self) -> None:
        #: By kin, for each kernel that was timed: measured over predicted seconds by family, logarithm.
        self._known: dict[Hashable, list[dict[Hashable, float]]] = defaultdict(list)

    @staticmethod
    def rounds(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Return those that learn from nobody, and those that come after: all but the first of a kin."""
        seen: dict[Hashable, int] = defaultdict(int)
        elders, others = list[Job](), list[Job]()
        for job in jobs:
            kin = similarity_key(job)
            seen[kin] += 1
            (elders if kin is None or seen[kin] <= PILOTS else others).append(job)
        return elders, others

    def learn(self, job: Job, candidates: Sequence[Candidate]) -> None:
        """Note the times of a kernel, where all that were worth timing have one nobody doubts."""
        kin = similarity_key(job)
        if kin is None:
            return
        fates = {c.id: c for c in candidates}
        timed = [fates[c.id] for c in job.starts]
        seconds = [c.measured_s for c in timed if c.status in ("measured", "slower") and c.measured_s]
        if len(seconds) < len(timed):
            return
        least_s = min(seconds)
        self._known[kin].append(
            {
                _family(c): math.log(min(s, _SLOWER * least_s) / c.estimate.seconds)
                for c, s in zip(timed, seconds, strict=True)
            }
        )

    def advise(self, job: Job) -> None:
        """Have a job make what is worth timing after all that its kin showed; nothing where too few were timed."""
        from roller.construction.worth_timing import uncertain

        kin = similarity_key(job)
        known = self._known.get(kin, []) if kin is not None else []
        if len(known) < PILOTS:
            return
        off = {family: statistics.median(k[family] for k in known) for family in known[0]}
        seconds = {n: job.candidates[n].estimate.seconds * math.exp(off[_family(job.candidates[n])]) for n in job.first}
        order = sorted(seconds, key=lambda n: (seconds[n], n))
        error = RATIO_ERROR * math.sqrt(1 + 1 / len(known))
        kept = uncertain([seconds[n] for n in order], order, error)
        job.first, job.elders = tuple(order[n] for n in kept), len(known)


def similarity_key(job: Job) -> Hashable | None:
    """Return what a kernel and its kin share; ``None`` for one that has a single candidate worth timing, or no choice.

    The form of the reduction, whatever its extents, and the families in question.
    """
    if job.light or job.options.top_k != "auto" or len(job.first) < 2 or job.elders:
        return None
    expr = job.candidates[0].program.expr
    anchor = expr.anchor
    loads = tuple((expr.tensors[x.tensor].dtype, x.index, bool(x.guard)) for x in anchor.loads)
    axes = tuple((a.name, a.kind) for a in expr.axes)
    families = frozenset(map(_family, job.starts))
    if len(families) < len(job.first):
        return None
    return axes, anchor.combiner, loads, len(expr.stages), job.options.units, job.rotating_bytes, families


def families_of(job: Job) -> dict[int, Hashable]:
    """Return the family of each candidate worth timing, by position; where a job has no kin, each is its own."""
    has_kin = similarity_key(job) is not None
    return {n: _family(job.candidates[n]) if has_kin else n for n in job.first}


def forms_of(job: Job) -> dict[int, Hashable]:
    """Return the form of each candidate worth timing, by position: what they have in common is mispredicted of all."""
    from roller.perf.accuracy import kernel_form

    return {n: kernel_form(_family(job.candidates[n])) for n in job.first}


def _family(candidate: Candidate) -> tuple[Any, ...]:
    from roller.perf.accuracy import kernel_family

    return kernel_family(candidate.program)
