"""Proofs of a model's kernels for a GPU that is not here: in parallel, the biggest share first, while seconds last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from roller.artifact import KernelArtifact
from roller.compiler.autotune.proving import LEAST_S, PROVE_S, USED_UP, Verdict, is_proved, missing, noted, proved_of
from roller.emulator.allowance import PATIENCE
from roller.hardware import DeviceSpec
from roller.models.batch.tasks import Prove, Task
from roller.runtime.cache_entry import CacheEntry

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.models.batch.executors import Results

#: Kernels per process that are proved before it is asked again whether there is time for more.
_WAVE = 4
#: What a proof is about: sources, grids and blocks, and what they shall compute.
Fact: TypeAlias = tuple[str, tuple[tuple[Any, Any], ...], str]


class Proofs:
    """What is known of the kernels of a batch.

    Parameters
    ----------
    spec
        The GPU.
    seconds
        That all proofs may take together on an idle machine; 0 where nothing is to be proved. A busy one may take
        :data:`PATIENCE` times as long: what is proved should not depend on who else computes.
    kernels, workers
        How many kernels share them, and how many are proved at a time.
    run
        Carries tasks out, in parallel.
    """

    def __init__(
        self, spec: DeviceSpec, seconds: float, kernels: int, workers: int, run: Callable[[Mapping[str, Task]], Results]
    ) -> None:
        self._spec, self._left_s, self._workers, self._run = spec, seconds, workers, run
        self._clock_left_s = PATIENCE * seconds
        self.each_s = min(PROVE_S, seconds * workers / max(1, kernels))
        self._known: dict[Fact, Verdict] = {}
        self._missing = missing() if seconds else ""

    def __bool__(self) -> bool:
        """Whether kernels are to be proved."""
        return self.each_s > 0

    def enough(self, artifact: KernelArtifact) -> bool:
        """Whether trying again would say no more of a kernel that was kept."""
        return not self or is_proved(artifact, self.each_s) or bool(self._missing and proved_of(artifact))

    def ahead(self, artifacts: Iterable[KernelArtifact]) -> None:
        """Prove kernels, in this order, as long as there is time."""
        todo = [a for a in artifacts if _fact(a) not in self._known]
        most = _WAVE * max(1, self._workers)
        for wave in (todo[n : n + most] for n in range(0, len(todo), most)):
            if not self or self._missing or min(self._left_s, self._clock_left_s) < LEAST_S:
                return
            self._prove(wave)

    def _prove(self, artifacts: Sequence[KernelArtifact]) -> None:
        """Prove kernels beside each other."""
        start = time.monotonic()
        results = self._run({f"{n}/proved": Prove(a, self._spec, self.each_s) for n, a in enumerate(artifacts)})
        self._clock_left_s -= time.monotonic() - start
        ended = [results[f"{n}/proved"] for n in range(len(artifacts))]
        took_s = [self.each_s if r.value is None else r.value.took_s for r in ended]
        self._left_s -= max([*took_s, sum(took_s) / max(1, self._workers)])
        for artifact, result in zip(artifacts, ended, strict=True):
            lost = f"{result.record.status}: {result.record.reason.partition(chr(10))[0]}"
            verdict: Verdict | None = result.value
            self._known[_fact(artifact)] = verdict or Verdict(f"not proved ({lost})")

    def __call__(self, candidate: Candidate, artifact: KernelArtifact) -> tuple[KernelArtifact, Verdict]:
        """Return the kernel of a candidate with what is known of it."""
        del candidate
        return self.of(artifact)

    def of(self, artifact: KernelArtifact) -> tuple[KernelArtifact, Verdict]:
        """Return a kernel with what is known of it.

        One that found no time left was offered its share all the same, which is noted: the next time nobody tries,
        unless there are more seconds. One that found no g++ was not.
        """
        self.ahead([artifact])
        verdict = self._known.get(_fact(artifact)) or Verdict(f"not proved ({self._missing.rstrip('.') or USED_UP})")
        return noted(artifact, verdict, 0.0 if self._missing else self.each_s), verdict


def with_proof(entry: CacheEntry, artifact: KernelArtifact) -> CacheEntry:
    """Return an entry of the cache whose kernel is this one, of which more is known now."""
    chosen, known = artifact.program.digest, proved_of(artifact)
    rows = tuple(replace(c, proved=known) if c.program.digest == chosen else c for c in entry.candidates)
    return replace(entry, artifact=artifact, candidates=rows)


def same_kernel(one: KernelArtifact, other: KernelArtifact) -> bool:
    """Whether a proof of one kernel is a proof of another: they differ in names at most."""
    return _fact(one) == _fact(other)


def _fact(artifact: KernelArtifact) -> Fact:
    """Return what a proof is about: not the candidate, which a kernel that was kept does not name."""
    return artifact.source, tuple((x.grid, x.block) for x in artifact.launches), artifact.expression.key
