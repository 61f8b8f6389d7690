"""Predictions for a model's kernels before compilation: made once, in parallel, and later read from a note.

Co-scheduling uses them; candidates constructed here are kept for the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, Constructed, Job, make_jobs
from roller.perf.estimate import Estimate
from roller.runtime.small_result_cache import read_small_result, write_small_result
from roller_runtime.plan.program_steps import KernelSource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roller.runtime.cache import KernelCache


class KernelPredictor:
    """Predicts the times of kernels by key and notes the estimates under a digest of all kernels of the model.

    Parameters
    ----------
    sources
        All kernels of the model; together with the settings they identify the note.
    construct
        Function that constructs jobs and returns the candidates by job digest; jobs without a fitting program are
        missing.
    cache
        Where the note is stored; ``None`` to store none.
    """

    def __init__(
        self,
        sources: Mapping[str, KernelSource],
        target: BatchTarget,
        settings: BatchSettings,
        construct: Callable[[Sequence[Job]], Mapping[str, Constructed]],
        cache: KernelCache | None,
    ) -> None:
        self._target, self._settings, self._construct = target, settings, construct
        self._folder = None if cache is None else cache.folder
        digests = sorted(j.digest for j in make_jobs(sources, target, settings, {}))
        self._name = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        #: Estimates by job digest, ``None`` if no program fits.
        self._known = {} if self._folder is None else _parse_estimates(read_small_result(self._folder, self._name))
        self.constructed: dict[str, Constructed] = {}

    def __call__(self, sources: Mapping[str, KernelSource], units: int | None) -> dict[str, Estimate]:
        """Return the estimate of each kernel's best program, for a share of the units if ``units`` is given."""
        asked = {k: s if units is None else replace(s, units=units) for k, s in sources.items()}
        jobs = make_jobs(asked, self._target, self._settings, {})
        missing = [j for j in jobs if j.digest not in self._known]
        if missing:
            found = self._construct(missing)
            self.constructed |= found
            for job in missing:
                made = found.get(job.digest)
                self._known[job.digest] = made[0][0].estimate if made else None
            if self._folder is not None:
                note = {i: None if e is None else e.to_dict() for i, e in self._known.items()}
                write_small_result(self._folder, self._name, note)
        known = {key: self._known[job.digest] for job in jobs for key, _ in job.names}
        return {key: e for key, e in known.items() if e is not None}


def _parse_estimates(note: Mapping[str, Any]) -> dict[str, Estimate | None]:
    """Return the estimates in a note; an empty dict if the note is malformed."""
    try:
        return {digest: None if e is None else Estimate.from_dict(e) for digest, e in note.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
