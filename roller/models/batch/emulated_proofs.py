"""Proofs of kernels for an absent GPU: in parallel, the largest predicted share first, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from roller.artifact import KernelArtifact
from roller.compiler.autotune.prove_on_emulator import (
    LEAST_S,
    PROVE_S,
    USED_UP,
    ProofVerdict,
    is_proof_exhausted,
    missing_emulator_reason,
    stored_proof_text,
    with_proof_verdict,
)
from roller.emulator.time_allowance import PATIENCE
from roller.hardware import DeviceSpec
from roller.models.batch.worker_tasks import ProveTask, WorkerTask
from roller.runtime.cache_entry import CacheEntry

if TYPE_CHECKING:
    from roller.construction.constructor import Candidate
    from roller.models.batch.executors import Results

#: Number of kernels per process that are proved between two checks of the remaining time.
_WAVE = 4
#: Subject of a proof: sources, grids and blocks, and the key of the expression.
Fact: TypeAlias = tuple[str, tuple[tuple[Any, Any], ...], str]


class Proofs:
    """Proves the kernels of a batch and remembers the verdicts.

    Parameters
    ----------
    seconds
        Time limit, in seconds, for all proofs together on an idle machine; 0 for no proofs. On a busy machine, the
        wall-clock time may reach :data:`PATIENCE` times this limit, so that other load does not affect which
        kernels are proven correct.
    kernels, workers
        Number of kernels that share the limit, and number of proofs that run at a time.
    run
        Function that runs tasks in parallel.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        seconds: float,
        kernels: int,
        workers: int,
        run: Callable[[Mapping[str, WorkerTask]], Results],
    ) -> None:
        self._spec, self._left_s, self._workers, self._run = spec, seconds, workers, run
        self._clock_left_s = PATIENCE * seconds
        self.each_s = min(PROVE_S, seconds * workers / max(1, kernels))
        self._known: dict[Fact, ProofVerdict] = {}
        self._missing = missing_emulator_reason() if seconds else ""

    def __bool__(self) -> bool:
        return self.each_s > 0

    def is_verdict_final(self, artifact: KernelArtifact) -> bool:
        """Return whether another attempt cannot improve the verdict on a kernel."""
        return (
            not self or is_proof_exhausted(artifact, self.each_s) or bool(self._missing and stored_proof_text(artifact))
        )

    def prove_while_time_remains(self, artifacts: Iterable[KernelArtifact]) -> None:
        """Run the proofs of kernels in the given order while time remains."""
        todo = [a for a in artifacts if _proof_identity(a) not in self._known]
        most = _WAVE * max(1, self._workers)
        for wave in (todo[n : n + most] for n in range(0, len(todo), most)):
            if not self or self._missing or min(self._left_s, self._clock_left_s) < LEAST_S:
                return
            self._prove_in_parallel(wave)

    def _prove_in_parallel(self, artifacts: Sequence[KernelArtifact]) -> None:
        start = time.monotonic()
        results = self._run({f"{n}/proved": ProveTask(a, self._spec, self.each_s) for n, a in enumerate(artifacts)})
        self._clock_left_s -= time.monotonic() - start
        ended = [results[f"{n}/proved"] for n in range(len(artifacts))]
        took_s = [self.each_s if r.value is None else r.value.took_s for r in ended]
        self._left_s -= max([*took_s, sum(took_s) / max(1, self._workers)])
        for artifact, result in zip(artifacts, ended, strict=True):
            lost = f"{result.record.status}: {result.record.reason.partition(chr(10))[0]}"
            verdict: ProofVerdict | None = result.value
            self._known[_proof_identity(artifact)] = verdict or ProofVerdict(f"not proved ({lost})")

    def __call__(self, candidate: Candidate, artifact: KernelArtifact) -> tuple[KernelArtifact, ProofVerdict]:
        """Return a candidate's kernel with its verdict."""
        del candidate
        return self.of(artifact)

    def of(self, artifact: KernelArtifact) -> tuple[KernelArtifact, ProofVerdict]:
        """Prove a kernel correct if time remains; return the kernel, annotated with the verdict, and the verdict."""
        self.prove_while_time_remains([artifact])
        verdict = self._known.get(_proof_identity(artifact)) or ProofVerdict(
            f"not proved ({self._missing.rstrip('.') or USED_UP})"
        )
        # The time limit is noted even if no time was left, so that only a larger limit repeats the attempt.
        return with_proof_verdict(artifact, verdict, 0.0 if self._missing else self.each_s), verdict


def update_entry_verdict(entry: CacheEntry, artifact: KernelArtifact) -> CacheEntry:
    """Return a cache entry with the new verdict on its kernel."""
    chosen, known = artifact.program.digest, stored_proof_text(artifact)
    rows = tuple(replace(c, proved=known) if c.program.digest == chosen else c for c in entry.candidates)
    return replace(entry, artifact=artifact, candidates=rows)


def is_proof_shared(one: KernelArtifact, other: KernelArtifact) -> bool:
    """Return whether a proof of one kernel holds for the other, that is, whether they differ at most in names."""
    return _proof_identity(one) == _proof_identity(other)


def _proof_identity(artifact: KernelArtifact) -> Fact:
    """Return what a proof of the kernel depends on; the candidate is not part of it."""
    return artifact.source, tuple((x.grid, x.block) for x in artifact.launches), artifact.expression.key
