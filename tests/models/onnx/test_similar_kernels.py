"""What kernels of a model that were timed say of those like them."""

from __future__ import annotations

import dataclasses
import math

import pytest

import roller
from roller.compile_arguments import spec_and_local_device
from roller.compiler.autotune import Selection, positions_to_try_first
from roller.construction.constructor import construct_candidates
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.executors import ForkedWorkers
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, Job, make_jobs
from roller.models.batch.similar_kernel_correction import PILOTS, SimilarKernels
from roller.perf.expected_errors import kernel_family_key
from roller.runtime.cache import KernelCache
from roller.runtime.candidate_records import Record
from roller_runtime.plan.program_steps import KernelSource

SIZES = (512, 480, 448, 416, 384)


def sources() -> dict[str, KernelSource]:
    """Products that differ in their reduction alone."""
    return {f"k{k}": KernelSource(roller.ops.matmul(128, 384, k), ("B",)) for k in SIZES}


def constructed(target: BatchTarget | None = None) -> list[Job]:
    target = target or BatchTarget(roller.load_spec("cpu-avx512"), True)
    jobs = make_jobs(sources(), target, BatchSettings(), {})
    for job in jobs:
        job.candidates = construct_candidates(job.expression, target.spec, job.options)
        job.first = positions_to_try_first(job.candidates, target.spec, job.options, Selection())
    return jobs


def timed(job: Job, factors: dict[object, float], status: str = "measured") -> tuple[object, ...]:
    """Return the candidates of a job as they are once timed: by so much more than predicted."""
    return tuple(
        dataclasses.replace(
            c, status=status, measured_s=c.estimate.seconds * factors.get(kernel_family_key(c.program), 1.0)
        )
        for c in job.candidates
    )  # fmt: skip


def test_the_first_of_a_kin_choose_for_the_others() -> None:
    pilots, others = SimilarKernels.split_pilots(jobs := constructed())
    assert [j.digest for j in pilots] == [j.digest for j in jobs[:PILOTS]] and others == jobs[PILOTS:]
    families = [kernel_family_key(c.program) for c in jobs[0].candidates_worth_timing]
    assert len(families) > 1
    for best in families:
        similar, (*first, last) = SimilarKernels(), constructed()
        for job in first[:PILOTS]:
            similar.restrict_candidates(job)
            assert not job.pilots, "nobody was timed yet, or too few"
            similar.record_prediction_errors(job, timed(job, dict.fromkeys([best], 0.85)))
        similar.restrict_candidates(last)
        assert [kernel_family_key(c.program) for c in last.candidates_worth_timing] == [best] and last.pilots == PILOTS


def test_families_that_were_as_fast_are_timed_again() -> None:
    """What is known to 6 % of a kernel with the same time is worth a second candidate, and no third."""
    similar, (*first, last) = SimilarKernels(), constructed()
    for job in first[:PILOTS]:
        seconds = max(c.estimate.seconds for c in job.candidates_worth_timing)
        equal = {kernel_family_key(c.program): seconds / c.estimate.seconds for c in job.candidates_worth_timing}
        similar.record_prediction_errors(job, timed(job, equal))
    ratios = [c.estimate.seconds / last.candidates[0].estimate.seconds for c in last.candidates_worth_timing]
    assert max(map(math.log, ratios)) < 0.02, "else they are no equals"
    similar.restrict_candidates(last)
    assert len(last.first) == 2


@pytest.mark.parametrize("what", ["doubtful", "failed", "light", "asked"])
def test_nothing_is_learned_of_what_says_nothing(what: str) -> None:
    similar, (*first, last) = SimilarKernels(), constructed()
    before = last.first
    for job in first:
        if what == "asked":  # as many as a person says
            job.options = dataclasses.replace(job.options, top_k=3)
        job.light = what == "light"
        status = what if what in ("doubtful", "failed") else "measured"
        similar.record_prediction_errors(job, timed(job, {kernel_family_key(job.candidates[1].program): 0.5}, status))
    similar.restrict_candidates(last)
    assert last.first == before and not last.pilots


def test_one_disturbed_time_decides_nothing() -> None:
    similar, (*first, last) = SimilarKernels(), constructed()
    good, *rest = (kernel_family_key(c.program) for c in last.candidates_worth_timing)
    for n, job in enumerate(first[:PILOTS]):
        similar.record_prediction_errors(job, timed(job, {good: 40.0} if n == 1 else dict.fromkeys(rest, 1.2)))
    similar.restrict_candidates(last)
    assert [kernel_family_key(c.program) for c in last.candidates_worth_timing] == [good]


def test_a_batch_builds_one_candidate_of_those_that_come_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled, checked, and found in the cache afterwards under the key of those that were timed."""
    spec, handle = spec_and_local_device("cpu")
    assert handle is None
    target, slow = BatchTarget(spec, True), dict[object, float]()

    def judge(self: ForkedWorkers, task: object) -> dict[str, Record]:
        artifacts = task.artifacts  # type: ignore[attr-defined]
        for n, a in enumerate(
            artifacts.values()
        ):  # the second family of the first kernel is the fastest in all of them
            slow.setdefault(kernel_family_key(a.program), 1.0 if n == 1 else 1.25)
        return {
            i: Record(i, "measured", measured_s=a.estimate["seconds"] * slow[kernel_family_key(a.program)])
            for i, a in artifacts.items()
        }  # fmt: skip

    monkeypatch.setattr(ForkedWorkers, "judge", judge)
    cache, wanted_ = KernelCache(), sources()
    batch = compile_kernels(wanted_, target, BatchSettings(), cache=cache)
    assert not batch.failures and set(batch.origins.values()) == {"compiled"}
    pilots, others = SimilarKernels.split_pilots(constructed(target))
    names = {True: [j.names[0][0] for j in pilots if len(j.first) > 1], False: [j.names[0][0] for j in others]}
    for was_timed, keys in names.items():
        assert all((batch.artifacts[key].measured_s is not None) == was_timed for key in keys)
    again = compile_kernels(wanted_, target, BatchSettings(), cache=cache)
    assert set(again.origins.values()) == {"cached"}
    assert {k: a.program for k, a in again.artifacts.items()} == {k: a.program for k, a in batch.artifacts.items()}
