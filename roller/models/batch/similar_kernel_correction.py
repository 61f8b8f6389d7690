"""Corrects predicted times of kernels by the measured times of similar kernels of the same model.

Layers of a model differ little: for example, 36 convolutions in DenseNet are three kernels with different numbers of
channels. The misprediction for a register tile is common to all of them, so a few pilots are timed in full, and their
ratios of measured to predicted time by kernel family correct the others, which often leaves one candidate to build.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from roller.models.batch.kernel_jobs import Job

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate

#: Number of similar kernels that are timed before the others: the median of three tolerates one disturbed timing.
PILOTS = 3
#: Expected error (one sigma of the logarithm) of the time ratio of two families in one of several similar kernels,
#: given the ratio in the others: the spread over DenseNet-121's kernels of 28 x 28 pixels is 0.04, including timing
#: errors.
RATIO_ERROR = 0.05
#: Assumed ratio to the best time for a candidate that was dropped after one run: a lower bound on the unknown ratio.
_SLOWER = 1.3


class SimilarKernels:
    """Groups of similar kernels in a batch, with the measured errors of their predictions."""

    def __init__(self) -> None:
        #: By similarity key, per timed kernel: logarithm of measured over predicted seconds by family.
        self._known: dict[Hashable, list[dict[Hashable, float]]] = defaultdict(list)

    @staticmethod
    def split_pilots(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
        """Return the pilots and the jobs whose predictions the pilots correct."""
        seen: dict[Hashable, int] = defaultdict(int)
        pilots, others = list[Job](), list[Job]()
        for job in jobs:
            key = similarity_key(job)
            seen[key] += 1
            (pilots if key is None or seen[key] <= PILOTS else others).append(job)
        return pilots, others

    def record_prediction_errors(self, job: Job, candidates: Sequence[Candidate]) -> None:
        """Record a kernel's times if every candidate worth timing has a valid time."""
        key = similarity_key(job)
        if key is None:
            return
        fates = {c.id: c for c in candidates}
        timed = [fates[c.id] for c in job.candidates_worth_timing]
        seconds = [c.measured_s for c in timed if c.status in ("measured", "slower") and c.measured_s]
        if len(seconds) < len(timed):
            return
        least_s = min(seconds)
        self._known[key].append(
            {
                _kernel_family(c): math.log(min(s, _SLOWER * least_s) / c.estimate.seconds)
                for c, s in zip(timed, seconds, strict=True)
            }
        )

    def restrict_candidates(self, job: Job) -> None:
        """Restrict a job to the candidates still worth timing after the pilots; without enough pilots, do nothing."""
        from roller.construction.worth_timing import positions_worth_timing

        key = similarity_key(job)
        known = self._known.get(key, []) if key is not None else []
        if len(known) < PILOTS:
            return
        off = {family: statistics.median(k[family] for k in known) for family in known[0]}
        seconds = {
            n: job.candidates[n].estimate.seconds * math.exp(off[_kernel_family(job.candidates[n])]) for n in job.first
        }
        order = sorted(seconds, key=lambda n: (seconds[n], n))
        error = RATIO_ERROR * math.sqrt(1 + 1 / len(known))
        kept = positions_worth_timing([seconds[n] for n in order], order, error)
        job.first, job.pilots = tuple(order[n] for n in kept), len(known)


def similarity_key(job: Job) -> Hashable | None:
    """Return the key that similar kernels share; ``None`` if there is no choice or if families are ambiguous."""
    if job.light or job.options.top_k != "auto" or len(job.first) < 2 or job.pilots:
        return None
    # The form of the reduction without its extents, and the candidate families.
    expr = job.candidates[0].program.expr
    anchor = expr.anchor
    loads = tuple((expr.tensors[x.tensor].dtype, x.index, bool(x.guard)) for x in anchor.loads)
    axes = tuple((a.name, a.kind) for a in expr.axes)
    families = frozenset(map(_kernel_family, job.candidates_worth_timing))
    if len(families) < len(job.first):
        return None
    return axes, anchor.combiner, loads, len(expr.stages), job.options.units, job.rotating_bytes, families


def kernel_family_by_position(job: Job) -> dict[int, Hashable]:
    """Return the family of each candidate worth timing, by position; without similar kernels, the position itself."""
    has_kin = similarity_key(job) is not None
    return {n: _kernel_family(job.candidates[n]) if has_kin else n for n in job.first}


def misprediction_form_by_position(job: Job) -> dict[int, Hashable]:
    """Return the form of each candidate worth timing, by position; candidates of one form share a misprediction."""
    from roller.perf.expected_errors import kernel_form_key

    return {n: kernel_form_key(_kernel_family(job.candidates[n])) for n in job.first}


def _kernel_family(candidate: Candidate) -> tuple[Any, ...]:
    from roller.perf.expected_errors import kernel_family_key

    return kernel_family_key(candidate.program)
