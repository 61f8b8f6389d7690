"""Compiles the kernels of a model in waves, in parallel, those with the largest predicted share first.

A wave is built in parallel with the references of its checks. Then its kernels are checked and timed one at a time on
an otherwise idle machine, and each is cached as soon as it is chosen, so that an interrupt loses no finished kernel and
two processes that compile the same model divide its kernels between them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from roller.artifact import KernelArtifact
from roller.compiler.autotune import Selection, TuningContext, choose_first_lowered, choose_kernel
from roller.errors import BuildError, NoCandidateError
from roller.models.batch.batch_result import BatchResult
from roller.models.batch.emulated_proofs import Proofs, is_proof_shared, update_entry_verdict
from roller.models.batch.executors import ForkedWorkers, Results, Workers, isolate_crashing_candidates
from roller.models.batch.kernel_jobs import (
    QUICK,
    BatchSettings,
    BatchTarget,
    Constructed,
    Job,
    can_build_separately,
    construct_jobs,
    make_jobs,
)
from roller.models.batch.progress import OnProgress, Progress, ignore_progress
from roller.models.batch.similar_kernel_correction import SimilarKernels
from roller.models.batch.skip_negligible_timing import mark_jobs_noted_negligible, mark_negligible, note_negligible_jobs
from roller.models.batch.worker_tasks import BuildTask, CheckAndTimeTask, ReferenceTask, WorkerTask
from roller.runtime.cache import KernelCache
from roller.runtime.cache_entry import make_cache_entry
from roller.runtime.candidate_records import Record
from roller.runtime.list_and_drop_cached_kernels import remove_if_wrong
from roller_runtime.plan.program_steps import KernelSource

if TYPE_CHECKING:
    from roller.compiler.compiled_kernel import CompiledKernel
    from roller.construction.constructor import Candidate
    from roller.runtime.check import Oracle

#: Number of builds per process in a wave: large enough that processes are idle only briefly at the end of a wave, and
#: small enough that an interrupt loses only seconds. With a budget, the smallest number that keeps all processes busy.
_WAVE, _WAVE_IN_BUDGET = 16, 2


def compile_kernels(
    sources: Mapping[str, KernelSource],
    target: BatchTarget,
    settings: BatchSettings | None = None,
    *,
    uses: Mapping[str, int] | None = None,
    passing: Mapping[str, int] | None = None,  # bytes touched between two runs of a kernel, which evict its constants
    worker_pool: Workers | None = None,
    cache: KernelCache | None = None,
    progress: OnProgress = ignore_progress,
    constructed: Mapping[str, Constructed] | None = None,
    given: Mapping[str, KernelArtifact] | None = None,
) -> BatchResult:
    """Compile kernels or take them from the cache; failed kernels are listed in the result."""
    start = time.monotonic()
    chosen = settings or BatchSettings()
    jobs = make_jobs(sources, target, chosen, uses or {}, passing)
    kept = None if target.is_null_device else cache
    hired = worker_pool or ForkedWorkers()
    run = _BatchRun(jobs, target, chosen, hired, kept, progress, start, constructed or {}, given or {})
    try:
        run.compile_all()
    finally:
        if worker_pool is None:
            hired.close()
    artifacts, failures, origins = {}, {}, {}
    for job in jobs:
        for key, expression in job.names:
            if job.digest in run.artifacts:  # the artifact takes the names of this key's expression
                artifacts[key] = replace(run.artifacts[job.digest], expression=expression)
                origins[key] = run.origins[job.digest]
            else:
                failures[key] = run.failures[job.digest]
    return BatchResult(artifacts, failures, origins, time.monotonic() - start)


class _BatchRun:
    """State of one batch compilation."""

    def __init__(
        self,
        jobs: Sequence[Job],
        target: BatchTarget,
        settings: BatchSettings,
        worker_pool: Workers,
        cache: KernelCache | None,
        progress: OnProgress,
        start: float,
        constructed: Mapping[str, Constructed],
        given: Mapping[str, KernelArtifact],
    ) -> None:
        self.jobs, self.target, self.settings, self.worker_pool, self.cache = jobs, target, settings, worker_pool, cache
        self.artifacts: dict[str, KernelArtifact] = {}
        self.failures: dict[str, str] = {}
        self.origins: dict[str, str] = {}
        self._progress, self._start, self._began_at = progress, start, time.time()
        self._made: Results = {}
        self._kin = SimilarKernels()
        self._constructed, self._given = constructed, given
        self._binary = can_build_separately(target) if not target.is_null_device else False
        prove_s = 0.0 if target.checks_kernels else settings.prove_s
        self._proofs = Proofs(
            target.spec, prove_s, len(jobs), worker_pool.workers, lambda t: worker_pool.map(t, patient=True)
        )

    def compile_all(self) -> None:
        """Look kernels up, construct the missing ones, and run the passes."""
        passes = self._selection_per_pass()
        timed = self.target.checks_kernels and passes[-1] != QUICK
        if timed and self.cache is not None:
            mark_jobs_noted_negligible(self.cache.folder, self.jobs)
        missing = self._take_available_kernels(self.jobs, passes[-1], "cached")
        quick = passes[0] == QUICK and len(passes) > 1
        bare = self._take_available_kernels(missing, QUICK, "predicted") if quick else missing
        if not missing or (quick and not bare and self._is_over_budget()):
            return
        todo = self._construct(missing)
        self.worker_pool.prepare(self.target.spec.target.get("language", ""))
        if timed:
            self._mark_and_note_negligible(todo)
        if quick:
            self._compile_in_waves([j for j in todo if j in bare], QUICK)
            todo = [j for j in todo if not j.light or j.digest not in self.artifacts]
        self._compile_in_waves(todo, passes[-1])

    def _selection_per_pass(self) -> tuple[Selection, ...]:
        if self.settings.deterministic:
            return (QUICK,)
        return (
            (QUICK, Selection())
            if self.settings.budget_s is not None and self.target.checks_kernels
            else (Selection(),)
        )

    def _is_over_budget(self) -> bool:
        budget_s = self.settings.budget_s
        return budget_s is not None and time.monotonic() - self._start > budget_s

    def _take_available_kernels(self, jobs: Sequence[Job], how: Selection, origin: str) -> list[Job]:
        """Take kernels from the cache; return the jobs whose kernels the cache lacks."""
        if not jobs or (self.cache is None and not self._given):
            return list(jobs)
        found, missing, unproved = self._given_or_cached_kernels(jobs, how), list[Job](), list[Job]()
        for job in jobs:
            artifact = found.get(job.digest)
            if artifact is None or (self._binary and artifact.binary is None):
                missing.append(job)
            elif self._proofs.is_verdict_final(artifact):
                self._record_result(job, artifact, origin)
            else:
                unproved.append(job)
        self._report_progress("cache")
        return missing + self._prove_existing_kernels([(j, found[j.digest]) for j in unproved], how, origin)

    def _given_or_cached_kernels(self, jobs: Sequence[Job], how: Selection) -> dict[str, KernelArtifact]:
        """Return the kernels that were given or are cached, by job digest."""
        given = {j.digest: self._given[n] for j in jobs for n, _ in j.names if n in self._given}
        others = [j for j in jobs if j.digest not in given]
        if self.cache is None or not others:
            return given
        keys, again = [j.key(how) for j in others], self.settings.remeasure
        found = self.cache.artifacts(keys, measured=self.target.checks_kernels, since=self._began_at, anew=again)
        return given | {j.digest: found[d] for j in others if (d := j.key(how).digest) in found}

    def _prove_existing_kernels(self, kept: list[tuple[Job, KernelArtifact]], how: Selection, origin: str) -> list[Job]:
        """Run proofs of existing kernels, the largest predicted share first; return the jobs of wrong kernels."""
        if not kept:
            return []
        kept.sort(key=lambda pair: (-pair[0].uses * float(pair[1].estimate["seconds"]), pair[0].digest))
        self._proofs.prove_while_time_remains(artifact for _, artifact in kept)
        wrong = []
        for job, known in kept:
            artifact, verdict = self._proofs.of(known)
            if verdict.wrong:
                wrong.append(job)
                if self.cache is not None:  # otherwise a wrong kernel without another candidate would stay cached
                    remove_if_wrong(self.cache, job.key(how), partial(is_proof_shared, known))
                continue
            entry = None if self.cache is None else self.cache.load(job.key(how))
            if self.cache is not None and entry is not None and is_proof_shared(entry.artifact, known):
                # Only the proof is new: the times keep their age.
                self.cache.store(job.key(how), update_entry_verdict(entry, artifact), measurements=())
            self._record_result(job, artifact, origin)
        return wrong

    def _construct(self, jobs: Sequence[Job]) -> list[Job]:
        """Construct candidates; return the jobs that have candidates, those with the largest predicted share first."""
        self._report_progress("construct")
        known = self._constructed
        new, failures = construct_jobs([j for j in jobs if j.digest not in known], self.target, self.worker_pool)
        self.failures |= failures
        for job in jobs:
            if job.digest not in failures:
                job.candidates, job.first = known.get(job.digest) or new[job.digest]
        return sorted((j for j in jobs if j.candidates), key=lambda j: (-j.share_s, j.digest))

    def _mark_and_note_negligible(self, todo: Sequence[Job]) -> None:
        """Mark the kernels that are not worth timing and record them next to the cache."""
        chosen = [(j, self.artifacts[j.digest]) for j in self.jobs if j.digest in self.artifacts]
        others_s = sum(j.uses * float(a.estimate["seconds"]) for j, a in chosen if j not in todo)
        mark_negligible(todo, self.target.spec, others_s)
        if self.cache is not None:
            note_negligible_jobs(self.cache.folder, self.jobs)

    def _compile_in_waves(self, jobs: Sequence[Job], how: Selection) -> None:
        """Compile kernels in waves; kernels that another process has locked come last."""
        bounded = how != QUICK and self.settings.budget_s is not None
        theirs: list[Job] = []
        for part in self._kin.split_pilots(jobs) if self._is_timed_selection(how) else (jobs,):
            for wave in self._split_into_waves(part, how, bounded):
                if bounded and self._is_over_budget():
                    return
                theirs += self._compile_unclaimed_of_wave(wave, how)
        for job in theirs:
            if bounded and self._is_over_budget():
                return
            self._compile_unclaimed_of_wave([job], how, wait=True)

    def _is_timed_selection(self, how: Selection) -> bool:
        """Return whether kernels are timed, so that pilot kernels correct the predictions of similar ones."""
        return how != QUICK and self.target.checks_kernels

    def _split_into_waves(self, jobs: Sequence[Job], how: Selection, bounded: bool) -> Iterator[list[Job]]:
        wave: list[Job] = []
        most = self.worker_pool.workers * (_WAVE_IN_BUDGET if bounded else _WAVE)
        for job in jobs:
            if self._is_timed_selection(how):
                self._kin.restrict_candidates(job)
            wave.append(job)
            if sum(len(j.candidates_built_first(how)) for j in wave) >= most:
                yield wave
                wave = []
        if wave:
            yield wave

    def _compile_unclaimed_of_wave(self, jobs: Sequence[Job], how: Selection, wait: bool = False) -> list[Job]:
        """Compile the kernels of a wave that no other process has locked; return the jobs of the others."""
        with contextlib.ExitStack() as claims:
            mine, theirs = list(jobs), list[Job]()
            if self.cache is not None:
                free = [claims.enter_context(self.cache.claim(j.key(how), wait=wait)) for j in jobs]
                theirs = [j for j, is_free in zip(jobs, free, strict=True) if not is_free]
                mine = self._take_available_kernels([j for j in jobs if j not in theirs], how, "cached")
            self._build_wave_in_parallel(mine, how)
            self._check_untimed_in_parallel(mine, how)
            self._proofs.prove_while_time_remains(self._built_artifacts(mine, how))
            benches = max(1, self.worker_pool.benches if self.target.checks_kernels else 1)
            if benches == 1:
                for job in mine:
                    self._choose_and_store(job, how)
            else:
                with ThreadPoolExecutor(benches) as threads:
                    list(threads.map(lambda job: self._choose_and_store(job, how), mine))
        return theirs

    def _build_wave_in_parallel(self, jobs: Sequence[Job], how: Selection) -> None:
        """Build in parallel the candidates and references that every outcome of the wave needs."""
        tasks: dict[str, WorkerTask] = {}
        for job in jobs:
            tasks |= {c.id: self._make_build_task(job, c) for c in job.candidates_built_first(how)}
            if self.target.checks_kernels:
                periodic = bool(self.target.device)
                programs = tuple(c.program for c in job.candidates_built_first(how))
                tasks[f"{job.digest}/reference"] = ReferenceTask(job.expression, self.settings.seed, periodic, programs)
        self._run_build_tasks({name: task for name, task in tasks.items() if name not in self._made}, how)

    def _check_untimed_in_parallel(self, jobs: Sequence[Job], how: Selection) -> None:
        """Check, in parallel, the kernels for this processor that are not timed."""
        if not isinstance(self.worker_pool, ForkedWorkers) or self.target.device or not self.target.checks_kernels:
            return
        tasks: dict[str, CheckAndTimeTask] = {}
        for job in jobs:
            first, *more = (c.id for c in job.candidates_built_first(how))
            built = self._made[first].value
            if built is not None and not more and (job.quick_if_light(how) == QUICK or job.options.top_k == "auto"):
                tasks[f"{first}/checked"] = self._make_check_and_time_task(job, {first: built}, timed=False)
        if tasks:
            with self._machine_lock(alone=False):
                self._made |= self.worker_pool.check(tasks, lambda name: self._report_progress("build"))

    def _built_artifacts(self, jobs: Sequence[Job], how: Selection) -> list[KernelArtifact]:
        """Return the built artifacts of a wave's first candidates."""
        return [made for j in jobs if (made := self._made[j.candidates_built_first(how)[0].id].value) is not None]

    def _run_build_tasks(self, tasks: Mapping[str, WorkerTask], how: Selection) -> None:
        if not tasks:
            return
        with self._machine_lock(alone=False):
            self._made |= self.worker_pool.map(
                tasks, lambda name: self._report_progress("build"), patient=how.deterministic
            )

    def _machine_lock(self, *, alone: bool) -> contextlib.AbstractContextManager[None]:
        nobody_else = self.cache is None or not self.target.here
        return contextlib.nullcontext() if self.cache is None or nobody_else else self.cache.machine(alone=alone)

    def _make_build_task(self, job: Job, candidate: Candidate) -> BuildTask:
        # A kernel for a share of the units is built for that share: one for a single core starts no threads.
        spec, units = self.target.spec, job.options.units
        share = spec if units is None else spec.share(units)
        return BuildTask(candidate.program, candidate.estimate.to_dict(), job.expression, share, self._binary)

    def _choose_and_store(self, job: Job, how: Selection) -> None:
        """Choose a kernel from its built candidates and cache it."""
        self._report_progress(
            "time" if self.target.checks_kernels and job.quick_if_light(how) != QUICK else "build", job.expression.name
        )
        try:
            kernel = self._check_time_and_choose(job, how)
        except NoCandidateError as err:
            self.failures[job.digest] = str(err)
        else:
            if self.cache is not None:
                self.cache.store(job.key(how), make_cache_entry(kernel.artifact, kernel.candidates))
            bounded = how == QUICK and not self.settings.deterministic and not job.light
            self._record_result(job, kernel.artifact, "predicted" if bounded else "compiled")
        reached = how == QUICK and job.digest in self.artifacts
        for name in [f"{job.digest}/reference", *(c.id for c in job.candidates)]:
            if not reached or self.settings.deterministic:  # otherwise the next pass uses them again
                self._made.pop(name, None)
        self._report_progress("build")

    def _check_time_and_choose(self, job: Job, how: Selection) -> CompiledKernel:
        def build(jobs: Mapping[str, Candidate], timed: bool) -> Results:
            missing = {i: self._make_build_task(job, c) for i, c in jobs.items() if i not in self._made}
            self._run_build_tasks(missing, how)
            return {i: self._made[i] for i in jobs}

        def take(candidate: Candidate) -> KernelArtifact:
            result = build({candidate.id: candidate}, False)[candidate.id]
            if result.value is None:
                raise BuildError(result.record.reason)
            artifact: KernelArtifact = result.value
            return artifact

        if not self.target.checks_kernels:
            return choose_first_lowered(job.expression, self.target.spec, job.candidates, take, self._proofs or None)
        shop = TuningContext(
            job.expression,
            self.target.spec,
            job.options,
            take,
            self._make_check_and_time_function(job),
            build,
            job.first,
        )
        kernel = choose_kernel(shop, job.candidates, job.quick_if_light(how))
        self._kin.record_prediction_errors(job, kernel.candidates)
        return kernel

    def _make_check_and_time_function(
        self, job: Job
    ) -> Callable[[Mapping[str, KernelArtifact], bool], Mapping[str, Record]]:
        def judge(artifacts: Mapping[str, KernelArtifact], timed: bool) -> Mapping[str, Record]:
            if not artifacts:
                return {}
            reference = self._made.get(f"{job.digest}/reference")
            if reference is not None and reference.value is None:
                return {i: Record(i, "failed", f"no reference: {reference.record.reason}") for i in artifacts}
            task = self._make_check_and_time_task(job, artifacts, timed)
            ahead = None if timed else self._made.pop(f"{next(iter(artifacts))}/checked", None)
            if ahead is not None:
                return isolate_crashing_candidates(task, ahead, lambda _: ahead)
            with self._machine_lock(alone=timed) if self.worker_pool.benches == 0 else contextlib.nullcontext():
                return self.worker_pool.judge(task)

        return judge

    def _make_check_and_time_task(
        self, job: Job, artifacts: Mapping[str, KernelArtifact], timed: bool
    ) -> CheckAndTimeTask:
        reference = self._made.get(f"{job.digest}/reference")
        oracle: Oracle | None = None if reference is None else reference.value
        spec, seed, device = self.target.spec, self.settings.seed, self.target.device
        return CheckAndTimeTask(job.expression, spec, artifacts, timed, seed, oracle, device, job.rotating_bytes)

    def _record_result(self, job: Job, artifact: KernelArtifact, origin: str) -> None:
        self.artifacts[job.digest], self.origins[job.digest] = artifact, origin
        self.failures.pop(job.digest, None)

    def _report_progress(self, phase: str, label: str = "") -> None:
        finished = sum(o != "predicted" for o in self.origins.values()) + len(self.failures)
        self._progress(Progress(phase, finished, len(self.jobs), label))
