"""Builds are isolated: one that fails, dies or hangs is a record and takes nothing with it."""

import gc
import itertools
import multiprocessing
import os
import tempfile
import time
import warnings

import pytest

from roller.errors import BuildError
from roller.runtime import build_pool
from roller.runtime.build_pool import build_all
from roller.runtime.candidate_records import Record, grouped_reasons
from roller.runtime.time_candidate_kernels import Contender, measure_median, time_candidates
from tests.dying import die_of_a_fault
from tests.runtime.fake_clock import FakeClock


def _build(job):
    kind, value = job
    if kind == "raise":
        raise BuildError(f"candidate {value}: refused")
    if kind == "kill":
        die_of_a_fault()
    if kind == "exit":
        os._exit(3)
    if kind == "hang":
        time.sleep(3600)
    if kind == "slow":
        time.sleep(0.3)
    return value * 2


class _Skipping:
    """A clock that leaps at every look once something is so: what hangs is out of time then, however busy all is."""

    def __init__(self, then):
        self._then, self._ahead_s = then, 0.0

    def perf_counter(self):
        self._ahead_s += 2000.0 * self._then()
        return time.perf_counter() + self._ahead_s


@pytest.mark.parametrize("reuse", [False, True])
def test_failures_are_records_keyed_by_id_and_lose_nobody(monkeypatch, reuse):
    jobs = {
        "slow": ("slow", 1), "a": ("ok", 2), "bad": ("raise", 3), "segv": ("kill", 4), "exit": ("exit", 5),
        "hang": ("hang", 6), "b": ("ok", 7),
    }  # fmt: skip
    seen = []
    monkeypatch.setattr(build_pool, "time", _Skipping(lambda: len(seen) == len(jobs) - 1))
    out = build_all(jobs, _build, workers=3, timeout_s=1000.0, on_result=lambda r: seen.append(r.candidate_id),
                    reuse=reuse)  # fmt: skip
    assert list(out) == list(jobs)
    assert sorted(seen) == sorted(jobs)
    assert {n: r.value for n, r in out.items()} == {
        "slow": 2, "a": 4, "bad": None, "segv": None, "exit": None, "hang": None, "b": 14,
    }  # fmt: skip
    records = {n: r.record for n, r in out.items()}
    assert records["bad"].status == "failed"
    assert records["bad"].reason == "BuildError: candidate 3: refused"
    assert (records["segv"].status, "SIGSEGV" in records["segv"].reason) == ("crashed", True)
    assert (records["exit"].status, "exit code 3" in records["exit"].reason) == ("crashed", True)
    assert (records["hang"].status, "longer than 1000 s" in records["hang"].reason) == ("timeout", True)
    assert seen[-1] == "hang" and records["slow"].build_s >= 0.3


def _where(job):
    if job == "kill":
        die_of_a_fault()
    return os.getpid()


def test_a_process_does_one_job_or_as_many_as_it_survives():
    jobs = {n: "kill" if n == "c" else "ok" for n in "abcde"}
    alone = [r.value for r in build_all(jobs, _where, workers=1).values()]
    assert len(set(alone)) == 5, "one that died has none"
    first, second, died, *rest = (r.value for r in build_all(jobs, _where, workers=1, reuse=True).values())
    assert first == second and died is None and len({first, *rest}) == 2


def _litter(job):
    path = tempfile.mkdtemp()
    with open(job, "w") as file:
        file.write(path)
    time.sleep(3600)


def test_a_stopped_build_leaves_no_temporary_files(tmp_path, monkeypatch):
    where = tmp_path / "where"
    monkeypatch.setattr(build_pool, "time", _Skipping(lambda: where.exists() and where.read_text() != ""))
    out = build_all({"x": str(where)}, _litter, timeout_s=1000.0)
    assert out["x"].record.status == "timeout"
    assert not os.path.exists(where.read_text())


def test_large_results_come_through_the_pipe():
    out = build_all({"x": ("ok", b"1" * 5_000_000)}, _build)
    assert len(out["x"].value) == 10_000_000


def test_programs_are_built_in_parallel_and_one_bad_program_is_a_record():
    from roller import ops
    from roller.backends.cpu import CpuKernel
    from roller.runtime.check import check
    from roller.runtime.random_inputs import random_inputs
    from roller.templates.cpu.emit.lower_cpu_program import lower
    from tests.codegen.cpu_programs import canonical, host_mcpu, program

    e = ops.matmul(20, 30, 10)
    c = canonical(e)
    jobs = {
        "good": program(c, "tiled", {"i": 4, "j": 16}, {}, "j", staged=("B",)),
        "bad": program(c, "streaming"),
        "other": program(c, "tiled", {"i": 2, "j": 8}, {}, "j", 8),
    }
    mcpu = host_mcpu()
    out = build_all(jobs, lambda p: lower(p, e, mcpu, 2, "test", 64), workers=2)
    assert [r.record.status for r in out.values()] == ["built", "failed", "built"]
    assert "expected no reduction" in out["bad"].record.reason
    arrays = random_inputs(e)
    for name in ("good", "other"):
        assert check(e, arrays, CpuKernel(out[name].value)(*arrays)).ok


def test_reasons_are_grouped_and_statuses_checked():
    records = [Record("a", "failed", "x"), Record("b", "wrong", "y"), Record("c", "failed", "x"), Record("d", "built")]
    assert grouped_reasons(records) == "2 x failed: x; 1 x wrong: y"
    with pytest.raises(ValueError, match="unknown status 'broken'"):
        Record("a", "broken")


def test_timing_takes_the_median_and_drops_losers_after_one_run():
    clock, slow = FakeClock(), []
    contenders = [
        Contender("fast", clock.kernel(0.001), 0.001), Contender("slow", clock.kernel(0.03, slow), 0.03),
    ]  # fmt: skip
    out = time_candidates(contenders, budget_s=0.05, clock=clock)
    assert list(out) == ["fast", "slow"]
    assert out["fast"].complete
    assert not out["slow"].complete
    assert slow == [], "its checked run is the one that counts"
    assert (out["fast"].median_s, out["slow"].median_s) == (pytest.approx(0.001), 0.03)


def test_the_best_few_run_in_turn_at_the_end():
    order, clock = [], FakeClock()

    def run(name):
        def one():
            order.append(name)
            clock.spend(0.002)

        return one

    out = time_candidates([Contender(n, run(n), 0.002) for n in "abcd"], budget_s=0.02, clock=clock)
    assert set(out) == set("abcd") and all(t.complete for t in out.values())
    turns = [n for n, _ in itertools.groupby(order)]
    assert turns[:4] == list("abcd") and len(turns) == 4 + 3 * 7, "each alone, then three of them seven times"
    assert len(set(turns[4:7])) == 3 and turns[4:7] == turns[7:10]


def test_a_long_run_that_was_cold_gets_a_warm_one_before_it_loses():
    calls, clock = [], FakeClock()

    def run(name):
        def one():
            calls.append(name)
            clock.spend(0.05)

        return one

    first = {"a": 0.06, "cold": 0.1, "slow": 1.0}
    out = time_candidates([Contender(n, run(n), s) for n, s in first.items()], clock=clock)
    assert out["cold"].complete and out["cold"].median_s == pytest.approx(0.05)
    assert not out["slow"].complete and "slow" not in calls


def test_short_calls_are_batched():
    timing = measure_median(lambda: None, budget_s=0.01)
    assert timing.calls > 10
    assert timing.samples >= 5


def _told_and_waits(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(120)


def _forks_a_build(path):
    build_all({"a": path}, _told_and_waits, workers=1)


def _runs(pid):
    """Return whether a process lives; one that ended and that nobody waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="only Linux ends a process with its parent")
def test_a_build_ends_with_a_parent_that_was_killed(tmp_path):
    path = tmp_path / "pid"
    parent = multiprocessing.get_context("fork").Process(target=_forks_a_build, args=(str(path),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parent.start()
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    build = int(path.read_text())
    assert _runs(build)
    parent.kill()
    parent.join()
    while _runs(build) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(build)


class _OwnsThreads:
    """What ends a child that destroys it, as one would hang that joins threads it does not have."""

    def __init__(self) -> None:
        self.itself, self.home = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.home:
            os._exit(7)


def test_a_child_leaves_the_garbage_of_its_parent_alone():
    gc.disable()
    try:
        _OwnsThreads()
        done = build_all({"a": 1}, lambda job: (gc.enable(), gc.collect(), job)[-1])
    finally:
        gc.enable()
        gc.collect()  # here, so that it ends no child of a later test
    assert done["a"].value == 1, done["a"].record


def test_what_is_done_meanwhile_runs_here_while_workers_go_on():
    """One that dies meanwhile is replaced afterwards, when no other thread runs here that a fork would not copy."""
    here, seen = os.getpid(), []

    def job(n):
        time.sleep(0.02)
        if n == 1:
            os._exit(3)
        return n, os.getpid()

    def meanwhile():
        time.sleep(0.3)
        seen.append((os.getpid(), len(multiprocessing.active_children())))

    done = build_all({str(n): n for n in range(30)}, job, workers=2, reuse=True, meanwhile=meanwhile)
    assert done["1"].record.status == "crashed"
    others = {n: r.value for n, r in done.items() if n != "1"}
    assert list(done) == [str(n) for n in range(30)] and all(v[0] == int(n) for n, v in others.items())
    assert seen == [(here, 1)], "the one that is left works on"
    assert len({pid for _, pid in others.values()} - {here}) >= 2 and not multiprocessing.active_children()


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError])
def test_what_fails_meanwhile_ends_all(error):
    def fail():
        raise error("no more")

    with pytest.raises(error, match="no more"):
        build_all({str(n): n for n in range(8)}, lambda n: time.sleep(60), workers=2, reuse=True, meanwhile=fail)
    assert not multiprocessing.active_children()
