"""Batches of kernels: each once, nothing lost by whatever ends one early, look-ups without a compiler."""

import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller.backends.cpu.launcher import CpuKernel
from roller.compile_arguments import spec_and_local_device
from roller.compiler.autotune import Selection
from roller.errors import BuildError, NoCandidateError
from roller.hardware import load_spec
from roller.models.batch import worker_tasks
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.executors import ForkedWorkers, isolate_crashing_candidates
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget, make_jobs, rotating_constant_bytes
from roller.models.batch.skip_negligible_timing import mark_negligible
from roller.runtime.build_pool import BuildResult
from roller.runtime.cache import CacheKey, KernelCache
from roller.runtime.cache_lock import file_lock
from roller.runtime.candidate_records import Record
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import KernelSource
from tests.dying import die_of_a_fault


@pytest.fixture
def cache():
    return KernelCache()


def sources(*sizes):
    """Element-wise kernels (the quickest to build) of distinct shapes, the larger the longer."""
    return {f"relu{n}": KernelSource(roller.ops.elementwise("relu", (n,))) for n in sizes}


def target(device="cpu"):
    spec, handle = spec_and_local_device(device)
    return BatchTarget(spec, device == "cpu" or handle is not None, handle.text if handle else "")


def settings(**options):
    return BatchSettings(ConstructOptions(top_k=options.pop("top_k", 1)), **options)


def test_equal_kernels_are_compiled_once_and_every_key_has_its_own_names(cache):
    one, other = roller.ops.elementwise("relu", (64,)), roller.ops.elementwise("relu", (64,))
    stage = other.stages[0]
    renamed = replace(other, stages=(replace(stage, output=replace(stage.output, name="result")),), outputs=("result",))
    made = []
    batch = compile_kernels(
        {"a": KernelSource(one), "b": KernelSource(renamed)}, target(), settings(), cache=cache,
        progress=lambda p: made.append(p),
    )  # fmt: skip
    assert batch.origins == {"a": "compiled", "b": "compiled"} and not batch.failures
    assert batch.artifacts["a"].binary == batch.artifacts["b"].binary
    assert [t.name for t in batch.artifacts["b"].expression.output_tensors] == ["result"]
    assert made[-1].done == made[-1].total == 1
    assert cache.info()["entries"] == 1


def test_kernels_compute_what_they_should(cache):
    expr = roller.ops.matmul(24, 40, 16, epilogue=("bias",))
    source = KernelSource(expr, (expr.inputs[1].name,))
    artifact = compile_kernels({"k": source}, target(), settings(top_k="auto"), cache=cache).artifacts["k"]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape, dtype=np.float32) for t in expr.inputs]
    constant = replace(artifact.constants[0], values=arrays[1].tobytes())
    result = CpuKernel(replace(artifact, constants=(constant,)))(arrays[0], arrays[2])
    np.testing.assert_allclose(result, expr.evaluate(arrays)[0], rtol=1e-4, atol=1e-5)


def test_a_model_times_kernels_with_constants_its_caches_lost(cache, monkeypatch):
    """Under a key of its own: what was chosen with warm constants is another question's answer."""
    expr, seen = roller.ops.matmul(64, 64, 64), []
    wanted = {"k": KernelSource(expr, (expr.inputs[1].name,)), "bare": KernelSource(roller.ops.matmul(48, 48, 48))}
    judge = ForkedWorkers.judge
    monkeypatch.setattr(
        ForkedWorkers, "judge", lambda self, task: seen.append(task.rotating_bytes) or judge(self, task)
    )
    passing = {"k": 1 << 40}
    for origin in ("compiled", "cached"):
        batch = compile_kernels(wanted, target(), settings(top_k=2), passing=passing, cache=cache)
        assert set(batch.origins.values()) == {origin}
    spec = target().spec
    assert sorted(seen) == [0, rotating_constant_bytes(spec, 1 << 40)]
    assert max(seen) >= min(spec.memory_layers[-2].capacity_bytes, 1 << 27), "as the caches, but for vast ones"
    again = compile_kernels(wanted, target(), settings(top_k=2), cache=cache)
    assert again.origins == {"k": "compiled", "bare": "cached"} and seen[-1] == 0


def test_kernels_whose_choice_no_measurement_of_the_model_shows_are_not_timed(cache, monkeypatch):
    heavy, lighter = roller.ops.matmul(192, 192, 192), roller.ops.matmul(40, 24, 72)
    wanted, seen = {"heavy": KernelSource(heavy), "light": KernelSource(lighter)}, []
    judge = ForkedWorkers.judge
    monkeypatch.setattr(
        ForkedWorkers, "judge", lambda self, task: seen.append((task.expression, task.timed)) or judge(self, task)
    )
    spec = target().spec.with_overrides({"accuracy.ranking_error": 0.3})  # so that both have something to choose
    for origin in ("compiled", "cached"):
        batch = compile_kernels(
            wanted, replace(target(), spec=spec), settings(top_k="auto"), uses={"heavy": 1000}, cache=cache
        )
        assert set(batch.origins.values()) == {origin}
        assert seen == [(heavy, True)], "the other was checked beside the builds"
    assert batch.artifacts["heavy"].measured_s and batch.artifacts["light"].measured_s is None
    alike = compile_kernels(wanted, replace(target(), spec=spec), settings(top_k="auto"), cache=cache)
    assert alike.origins["heavy"] == "cached"


@pytest.mark.parametrize(("uses", "light"), [((1, 1), []), ((1, 1000), [0]), ((1000, 1), [1])])
def test_the_lightest_kernels_are_those_that_cost_the_model_least(uses, light):
    spec = load_spec("cpu-avx512").with_overrides({"accuracy.ranking_error": 0.3})
    wanted = {n: KernelSource(roller.ops.matmul(n, n, n)) for n in (128, 132)}
    jobs = make_jobs(wanted, BatchTarget(spec, False), settings(top_k="auto"), dict(zip(wanted, uses, strict=True)))
    for job in jobs:
        job.candidates, job.first = worker_tasks.ConstructTask(job.expression, spec, job.options, Selection()).run()
        assert len(job.first) > 1
    mark_negligible(jobs, spec, 0.0)
    assert [n for n, job in enumerate(jobs) if job.light] == light
    mark_negligible(jobs, spec, 1.0)
    assert all(job.light for job in jobs), "beside a second of other kernels"


def test_rivals_of_one_form_go_before_those_of_another(monkeypatch):
    """What is mispredicted of a form is mispredicted of all its register tiles: timing them gains little."""
    spec = load_spec("cpu-avx512").with_overrides({"accuracy.ranking_error": 0.3})
    wanted = {"k": KernelSource(roller.ops.matmul(128, 384, 512), ("B",))}
    for other, left in (("slowest", 2), ("second", 1)):
        (job,) = make_jobs(wanted, BatchTarget(spec, False), settings(top_k="auto"), {})
        job.candidates, found = worker_tasks.ConstructTask(job.expression, spec, job.options, Selection()).run()
        job.first = before = found[:3]
        assert len(before) == 3
        form = {n: "of another" if n == before[left] else "of one" for n in before}
        monkeypatch.setattr(
            "roller.models.batch.skip_negligible_timing.misprediction_form_by_position",
            lambda job, form=form: {n: form[n] for n in job.first},
        )
        for n in range(40):
            mark_negligible([job], spec, job.share_s * 1.25**n)
            if len(job.first) < 3:
                break
        assert job.first == (before[0], before[left]) and not job.light, other


def test_of_a_kernel_whose_choice_shows_only_what_shows_is_built():
    """The last rivals gain least, and those of kernels that are timed for each other go together."""
    from roller.perf.expected_errors import (
        kernel_family_key,  # not above: a test below imports this file where no model may be
    )

    spec = load_spec("cpu-avx512").with_overrides({"accuracy.ranking_error": 0.5})
    wanted = {n: KernelSource(roller.ops.matmul(128, 384, n), ("B",)) for n in (512, 480)}
    jobs = make_jobs(wanted, BatchTarget(spec, False), settings(top_k="auto"), {})
    for job in jobs:
        job.candidates, job.first = worker_tasks.ConstructTask(job.expression, spec, job.options, Selection()).run()
    before = [job.first for job in jobs]
    assert min(map(len, before)) > 2
    left = [len(before[0])]
    for others_s in (0.0, *(sum(j.share_s for j in jobs) * n for n in (1, 2, 4, 8, 16))):
        mark_negligible(jobs, spec, others_s)
        left.append(len(jobs[0].first))
        assert len({frozenset(kernel_family_key(c.program) for c in j.candidates_worth_timing) for j in jobs}) == 1
        assert all(0 in j.first and set(j.first) <= set(b) for j, b in zip(jobs, before, strict=True))
        assert len({j.light for j in jobs}) == 1
    assert left == sorted(left, reverse=True) and 1 < left[-1] < left[0], left


def test_a_warm_batch_loads_neither_compiler_nor_constructor(cache):
    wanted = sources(64, 4096)
    compile_kernels(wanted, target(), settings(), cache=cache)
    code = (
        "import sys\nfrom tests.models.onnx.test_batch import *\n"
        "b = compile_kernels(sources(64, 4096), target(), settings(), cache=KernelCache())\n"
        "print(sorted(set(b.origins.values())), [m for m in ('tvm', 'roller.construction.constructor', 'roller.perf') "
        "if m in set(sys.modules) - before])"
    ).replace("import sys\n", "import sys\nbefore = set(sys.modules)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "['cached'] []", done.stderr


def test_one_failing_kernel_loses_no_other(cache, monkeypatch):
    build = worker_tasks.BuildTask.run

    def refuse_one(task):
        if task.expression.inputs[0].shape == (128,):
            raise BuildError("refused on purpose")
        return build(task)

    monkeypatch.setattr(worker_tasks.BuildTask, "run", refuse_one)
    batch = compile_kernels(sources(64, 128, 256), target(), settings(), cache=cache)
    assert set(batch.failures) == {"relu128"} and "refused on purpose" in batch.failures["relu128"]
    assert set(batch.artifacts) == {"relu64", "relu256"}
    with pytest.raises(NoCandidateError, match=r"model on cpu: 1 of 3 kernels .* refused on purpose.* other 2 are in"):
        batch.raise_if_any_failed("model", "cpu")
    monkeypatch.undo()
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(cache.folder))
    again = compile_kernels(sources(64, 128, 256), target(), settings(), cache=cache)
    assert again.origins == {"relu64": "cached", "relu128": "compiled", "relu256": "cached"}


def test_an_interrupted_batch_continues_where_it_stopped(cache):
    wanted = sources(64, 4096, 1 << 18)

    def interrupt(progress):
        if progress.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_kernels(wanted, target(), settings(), cache=cache, progress=interrupt)
    batch = compile_kernels(wanted, target(), settings(), cache=cache)
    # The biggest predicted share came first.
    assert batch.origins == {"relu64": "compiled", "relu4096": "compiled", "relu262144": "cached"}


def test_kernels_that_others_disturbed_are_measured_again(cache, monkeypatch):
    busy, judge = [True], ForkedWorkers.judge

    def judged(self, task):
        records = judge(self, task)
        doubted = {i: replace(r, status="doubtful", reason="others") for i, r in records.items() if busy[0] and r.ok}
        return records | doubted

    monkeypatch.setattr(ForkedWorkers, "judge", judged)
    found = []
    for is_busy, remeasure in ((True, False), (False, False), (False, False), (True, True), (False, False)):
        busy[0] = is_busy
        batch = compile_kernels(sources(64), target(), settings(remeasure=remeasure), cache=cache)
        found.append((batch.origins["relu64"], bool(batch.artifacts["relu64"].doubt)))
    assert found == [
        ("compiled", True), ("compiled", False), ("cached", False), ("compiled", True), ("cached", False),
    ], "what is doubtful is not final, and replaces nothing that is"  # fmt: skip


def test_uses_count_for_the_order(cache):
    wanted, first = sources(64, 1 << 18), []

    def stop(progress):
        if progress.phase == "time":
            first.append(progress.label)
            raise KeyboardInterrupt

    small = KernelSource(replace(wanted["relu64"].expression, name="small"))
    with pytest.raises(KeyboardInterrupt):
        compile_kernels(
            wanted | {"relu64": small}, target(), settings(), uses={"relu64": 10**6}, cache=cache, progress=stop
        )
    assert first == ["small"]


def test_without_time_every_kernel_still_gets_its_best_prediction(cache):
    wanted = sources(64, 4096)
    hurried = compile_kernels(wanted, target(), settings(top_k=2, budget_s=0.0), cache=cache)
    assert set(hurried.origins.values()) == {"predicted"} and not hurried.failures
    assert all(a.binary for a in hurried.artifacts.values())
    # What was not tried is tried as soon as there is time, and then kept.
    later = compile_kernels(wanted, target(), settings(top_k=2, budget_s=600.0), cache=cache)
    assert set(later.origins.values()) == {"compiled"}
    assert all(a.measured_s for a in later.artifacts.values())
    assert set(compile_kernels(wanted, target(), settings(top_k=2), cache=cache).origins.values()) == {"cached"}


def test_deterministic_times_nothing(cache):
    batch = compile_kernels(sources(64), target(), settings(top_k=3, deterministic=True), cache=cache)
    assert batch.artifacts["relu64"].measured_s is None
    program = roller.construct(roller.ops.elementwise("relu", (64,)), target().spec, top_k=3)[0].program
    assert batch.artifacts["relu64"].program == program


def test_a_device_that_is_not_here_needs_none(cache):
    batch = compile_kernels(sources(64), target("h200"), settings(), cache=cache)
    assert "__global__" in batch.artifacts["relu64"].source
    kernel = roller.compile(roller.ops.elementwise("relu", (64,)), device="h200", top_k=1)
    assert kernel.artifact.binary == batch.artifacts["relu64"].binary  # one entry serves both


def test_a_pretended_device_judges_and_keeps_nothing(cache):
    batch = compile_kernels(sources(64), target("null:v100"), settings(top_k=2), cache=cache)
    assert batch.artifacts["relu64"].measured_s and cache.info()["entries"] == 0


def compile_and_log(log, sizes):
    build = worker_tasks.BuildTask.run

    def logged(task):
        with open(log, "a") as file:  # one short line: written whole
            file.write(f"{task.expression.inputs[0].shape[0]}\n")
        return build(task)

    worker_tasks.BuildTask.run = logged
    batch = compile_kernels(sources(*sizes), target(), settings(), cache=KernelCache())
    assert len(batch.artifacts) == len(sizes)


@pytest.mark.slow
def test_two_processes_divide_the_kernels_of_one_model(cache, tmp_path):
    sizes = [1 << n for n in range(4, 22)]
    log = tmp_path / "built"
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=compile_and_log, args=(log, sizes)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(100)
    assert [p.exitcode for p in both] == [0, 0]
    assert sorted(int(line) for line in log.read_text().split()) == sizes


@pytest.mark.slow
def test_a_killed_batch_continues_where_it_stopped(cache, tmp_path):
    sizes = [1 << n for n in range(4, 22)]
    process = multiprocessing.get_context("fork").Process(target=compile_and_log, args=(tmp_path / "l", sizes))
    process.start()
    while cache.info()["entries"] == 0 and process.is_alive():
        process.join(0.05)
    process.kill()
    process.join()
    kept = cache.info()["entries"]
    assert 0 < kept < len(sizes)
    batch = compile_kernels(sources(*sizes), target(), settings(), cache=cache)
    assert (batch.count("cached"), batch.count("compiled")) == (kept, len(sizes) - kept)


def test_a_candidate_that_kills_its_judge_loses_alone():
    task = worker_tasks.CheckAndTimeTask(None, None, {"good": None, "bad": None, "fine": None}, True, 0, None)
    asked = []

    def again(one):
        asked.append((sorted(one.artifacts), one.timed))
        if "bad" in one.artifacts:
            return BuildResult(Record("one", "crashed", "signal SIGSEGV"))
        status = "measured" if one.timed else "checked"
        return BuildResult(Record("one", "built"), {i: Record(i, status) for i in one.artifacts})

    found = isolate_crashing_candidates(task, again(task), again)
    assert {i: r.status for i, r in found.items()} == {"good": "measured", "bad": "crashed", "fine": "measured"}
    assert asked[-1] == (["fine", "good"], True) and "SIGSEGV" in found["bad"].reason


class _Checked:
    """A check that says in which process it ran, and ends that of the others where it is told to."""

    runs_kernels = True

    def __init__(self, log, status="checked", kills=False):
        self.log, self.status, self.kills = log, status, kills

    def run(self):
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        if self.kills and len(self.log.read_text().splitlines()) <= 4:  # where others were checked before it
            die_of_a_fault()
        return {"one": Record("one", self.status)}


def test_checks_that_find_nothing_wrong_share_processes(tmp_path):
    log = tmp_path / "log"
    found = ForkedWorkers(2).check({str(n): _Checked(log) for n in range(8)})
    assert list(found) == [str(n) for n in range(8)] and all(r.value["one"].ok for r in found.values())
    ran = log.read_text().split()
    assert len(ran) == 8 and len(set(ran)) <= 2


@pytest.mark.parametrize(("status", "kills", "then"), [("wrong", False, "wrong"), ("checked", True, "checked")])
def test_where_a_check_fails_all_are_made_again_each_in_a_process_of_its_own(tmp_path, status, kills, then):
    log = tmp_path / "log"
    tasks_ = {str(n): _Checked(log, *((status, kills) if n == 3 else ())) for n in range(6)}
    found = ForkedWorkers(1).check(tasks_)
    assert [r.value["one"].status for r in found.values()] == ["checked"] * 3 + [then] + ["checked"] * 2
    ran = log.read_text().split()
    assert len(set(ran[-6:])) == 6 and len(ran) == 12


def test_who_times_is_alone_and_who_builds_is_not(cache):
    with cache.machine(alone=False), cache.machine(alone=False):
        (path,) = (cache.folder / "locks").glob("machine-*")
        with pytest.raises(BlockingIOError), file_lock(path, keep=True, wait=False):
            pytest.fail("timing beside a build")
    with cache.machine(alone=True), pytest.raises(BlockingIOError), file_lock(path, shared=True, wait=False):
        pytest.fail("building beside a timing")


def test_a_key_is_claimed_by_one(cache):
    spec = target().spec
    key = CacheKey.of(roller.ops.elementwise("relu", (8,)), spec.content_key, 1, {})
    with cache.claim(key) as mine, cache.claim(key) as theirs:
        assert mine and not theirs
    with cache.claim(key) as again:
        assert again
