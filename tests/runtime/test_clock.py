"""The honest clock: disturbed windows do not count, what stays disturbed is doubtful, and the disturbance is named."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from roller.runtime.time_candidate_kernels import PATIENCE_S, Contender, measure_median, time_candidates
from roller_runtime.core.processor_features_and_count import busy_and_stolen_seconds, may_share_cores
from roller_runtime.cpu import threads
from roller_runtime.timing.clock import (
    QUIET_SHARE,
    ClockSample,
    Load,
    SystemClock,
    TrustingClock,
    system_or_trusting_clock,
)
from roller_runtime.timing.disturbance import Disturbance, observe_machine
from roller_runtime.timing.undisturbed_timing_windows import MIN_SAMPLE_S, ExtraTime, TimingSeries
from tests.runtime.fake_clock import FakeClock

#: Two programs that never rest share both processors evenly; two others take bursts.
SPINNING, BURSTS = {"period_s": 8e-3, "held_s": 4e-3}, {"period_s": 15e-3, "held_s": 5e-3}


@pytest.mark.parametrize("seconds", [15e-6, 300e-6, 2e-3, 0.05])
def test_a_quiet_machine_is_measured_exactly_and_without_patience(seconds):
    clock = FakeClock()
    timing = time_candidates([Contender("a", clock.kernel(seconds), seconds)], budget_s=0.06, clock=clock)["a"]
    assert timing.median_s == pytest.approx(seconds)
    assert (timing.doubt, clock.rested) == ("", 0)
    assert clock.at < 0.06 + 4 * seconds


@pytest.mark.parametrize("pattern", [SPINNING, BURSTS])
@pytest.mark.parametrize("seconds", [2e-6, 15e-6, 300e-6])
def test_short_kernels_are_measured_between_disturbances(pattern, seconds):
    clock = FakeClock(**pattern)
    timing = time_candidates([Contender("a", clock.kernel(seconds), seconds)], clock=clock)["a"]
    assert timing.median_s == pytest.approx(seconds, rel=QUIET_SHARE)
    assert timing.doubt == ""


@pytest.mark.parametrize("pattern", [SPINNING, BURSTS])
def test_a_kernel_longer_than_any_quiet_spell_is_doubtful_and_says_why(pattern):
    clock = FakeClock(**pattern)
    timing = time_candidates([Contender("a", clock.kernel(0.1), 0.2, first_quiet=False)], clock=clock)["a"]
    others = 2 * pattern["held_s"] / pattern["period_s"]
    assert timing.doubt.startswith(f"other programs kept {others:.1f} of 2 processors")
    assert " windows were quiet, expected at least " in timing.doubt
    assert timing.least_s <= 0.1 + 1e-6 < timing.median_s


def test_patience_is_bounded():
    clock = FakeClock(**SPINNING)
    contenders = [Contender(n, clock.kernel(0.03), 0.06, first_quiet=False) for n in "abcdefghij"]
    out = time_candidates(contenders, budget_s=0.06, clock=clock)
    assert all(t.doubt for t in out.values())
    # Looks and samples that are taken whatever the patience: a few runs of each.
    assert PATIENCE_S / 2 < clock.at < PATIENCE_S + 10 * 6 * 0.06
    patience = ExtraTime(clock, 1.0)
    assert patience.count_and_has_time_left()
    clock.at += 0.6
    patience.pause()
    clock.at += 5.0
    assert patience.count_and_has_time_left()
    clock.at += 0.5
    assert not patience.count_and_has_time_left()


def test_each_contender_has_a_share_of_the_patience_and_what_was_left_before():
    clock = FakeClock()
    patience = ExtraTime(clock, 1.0, shares=4)

    def spent() -> float:
        start = clock.at
        while patience.count_and_has_time_left():
            clock.at += 1 / 64
        patience.start_next_share()
        return clock.at - start

    assert spent() == pytest.approx(0.25)
    patience.start_next_share()  # a contender that needs none
    assert spent() == pytest.approx(0.5)
    assert patience.count_and_has_time_left()
    clock.at += 0.35  # a try that takes longer than is left
    patience.start_next_share()
    assert spent() == 0.0, "four were expected"


@pytest.mark.parametrize("known", [True, False])
def test_whoever_comes_last_is_taken_again_as_often_as_the_first(known):
    clock, tries = FakeClock(**SPINNING), {name: list[float]() for name in "abcdefgh"}
    contenders = [Contender(n, clock.kernel(0.006, t), 0.012, first_quiet=False) for n, t in tries.items()]
    given = contenders if known else iter(contenders)
    time_candidates(given, budget_s=0.0, drop_factor=math.inf, finalists=1, clock=clock, expected=len(contenders))
    counts = [len(t) for t in tries.values()]
    assert min(counts) > 10
    assert max(counts) - min(counts) <= 2


def test_a_kernel_that_raises_leaves_no_file_open(tmp_path, monkeypatch):
    write(tmp_path, "proc/self/task/7/schedstat", "1000 0 3\n")
    clock, opened = SystemClock(lambda: [7], tmp_path), list[int]()
    monkeypatch.setattr("roller_runtime.timing.measure_median.system_or_trusting_clock", lambda: clock)

    def run() -> None:
        opened.append(len(clock._stats))
        if len(opened) == 4:
            raise ValueError("four")

    with pytest.raises(ValueError, match="four"):
        measure_median(run, warm_up=1)
    assert (opened[-1], clock._stats) == (1, {})


def test_a_first_run_that_was_disturbed_decides_nothing():
    """A kernel of 15 us whose first run took 34 ms was timed by that run alone."""
    clock = FakeClock()
    out = time_candidates([Contender("a", clock.kernel(15e-6), 0.034, first_quiet=False)], clock=clock)["a"]
    assert out.median_s == pytest.approx(15e-6)
    assert out.samples >= 5
    # Neither does one in whose time a window was planned.
    clock = FakeClock()
    slow = [5e-3] + [0.0] * 9999
    timing = measure_median(lambda: clock.spend(slow.pop(0) + 15e-6), clock=clock, warm_up=1)
    assert timing.median_s == pytest.approx(15e-6)
    assert timing.calls > 5


def uneven(clock, *seconds):
    """Return a call whose runs take so many seconds one after the other, and the last for good; and its clock.

    A negative time is one the caller's thread had to wait for.
    """
    left = list(seconds)

    def run() -> None:
        takes = left.pop(0) if len(left) > 1 else left[0]
        clock._pass(abs(takes), lost=takes < 0)

    return run


@pytest.mark.parametrize("runs", [
    (-0.03, 10e-6),  # the retry shows that a window holds many calls
    (-0.03, 10e-6, 10e-6, -0.03, 10e-6),
    (-0.03, 10e-6, 2e-7),
    (-0.005, 10e-6),  # the second run is disturbed and yet tells that the first one was cold
    (10e-6,),
])  # fmt: skip
def test_a_first_run_of_milliseconds_may_have_been_cold_all_the_same(runs):
    clock = FakeClock()
    timing = time_candidates([Contender("a", uneven(clock, *runs), 0.03)], clock=clock)["a"]
    assert timing.median_s == pytest.approx(runs[-1], rel=QUIET_SHARE)
    assert timing.doubt == "" and timing.samples * timing.calls > 1


@pytest.mark.parametrize("patience_s", [0.0, PATIENCE_S])
def test_a_long_run_that_others_disturbed_once_is_taken_again(patience_s):
    clock = FakeClock()
    timing = time_candidates([Contender("a", uneven(clock, -0.2, 0.1), 0.1)], clock=clock, patience_s=patience_s)["a"]
    assert (timing.doubt == "") is (patience_s > 0)
    assert timing.median_s == pytest.approx(0.1 if patience_s else 0.2)


def test_a_series_has_a_window_whenever_patience_ends():
    """Where a window shows that it holds more calls, those before it go, and one of the new kind takes their place."""
    clock = FakeClock()
    series = TimingSeries(uneven(clock, 2e-4, 1e-6, 1e-6, 1e-8), clock, 1, 3)
    for _ in range(4):
        found = series.take()
        assert series.windows and series.windows[-1] is found
        assert found.wall_s >= MIN_SAMPLE_S / 2 or series.calls == 10_000
        assert math.isfinite(series.timing().median_s)
    assert series.timing().median_s == pytest.approx(1e-8, rel=QUIET_SHARE)


def test_nobody_loses_by_a_disturbance_and_a_sure_loser_is_no_doubt():
    clock = FakeClock(**SPINNING)
    seconds = {"first": 3e-3, "better": 2.6e-3, "worse": 0.1}
    contenders = [Contender(n, clock.kernel(s), 3 * s, first_quiet=False) for n, s in seconds.items()]
    out = time_candidates(contenders, clock=clock)
    assert not out["better"].doubt and out["better"].complete
    assert out["better"].median_s == pytest.approx(2.6e-3, rel=0.1)
    assert out["better"].median_s < out["first"].median_s
    assert not out["worse"].complete
    assert out["worse"].doubt == "", "without what others took from it, it is thirty times slower"


def test_windows_that_disagree_are_taken_again_and_doubted():
    clock = FakeClock(0.4, 0.0)
    pace = [1.0]

    def run() -> None:
        pace[0] *= 1.05  # a processor that gets hotter and slower
        clock.spend(1e-3 * pace[0])

    timing = time_candidates([Contender("a", run, 1e-3)], clock=clock)["a"]
    assert "something the system does not count while it was timed: repeated windows differ by" in timing.doubt


def test_a_disturbance_nobody_counts_is_left_out_where_windows_agree_without_it():
    clock = FakeClock(period_s=0.11, held_s=0.045, counted=False)
    timing = time_candidates([Contender("a", clock.kernel(1e-3), 1e-3)], budget_s=0.6, clock=clock)["a"]
    assert timing.doubt == ""
    assert timing.median_s == pytest.approx(1e-3, rel=0.05)


@pytest.mark.parametrize(("threads", "shared", "doubtful"), [(1, True, True), (2, True, False), (1, False, False)])
def test_others_on_the_other_half_of_a_core_are_doubted(threads, shared, doubtful):
    """They never take the kernel's processor, so no window of it is disturbed."""
    clock = FakeClock(others=1.0, shared_cores=shared)
    timing = time_candidates([Contender("a", clock.kernel(1e-3), 1e-3, threads)], clock=clock)["a"]
    assert bool(timing.doubt) is doubtful
    if doubtful:
        assert timing.doubt == (
            "other programs kept 1.0 of 2 processors busy while it was timed, which may be other halves of its cores"
        )


@pytest.mark.parametrize(("others", "apart", "told"), [(1.0, 0.001, False), (1.0, 0.2, True), (0.0, 0.001, True)])
def test_times_too_close_for_a_busy_machine_are_not_ranked(others, apart, told):
    clock = FakeClock(others=others)
    contenders = [Contender(str(n), clock.kernel(1e-3 * (1 + apart) ** n), 1e-3, 2) for n in range(6)]
    out = time_candidates(contenders, drop_factor=math.inf, clock=clock)
    assert {t.tied == "" for t in out.values()} == {told}
    assert all(t.doubt == "" for t in out.values()), "each of them is right"
    if not told:
        assert out["0"].tied == (
            "the times are too close to be ranked while other programs kept 1.0 of 2 processors busy"
        )


def test_what_a_second_look_denies_is_not_ranked():
    """Times of one look may be apart by what others did meanwhile: the final shows how much that is."""
    clock = FakeClock(others=1.0)
    swings = [1.0]

    def run() -> None:
        clock.spend(1e-3 * swings[0])

    def contenders():
        for n in range(6):
            swings[0] = 1.15**n
            yield Contender(str(n), run, 1e-3, 2)
        swings[0] = 1.5  # in the final they are all alike

    out = time_candidates(contenders(), drop_factor=math.inf, clock=clock)
    assert all("too close to be ranked" in t.tied for t in out.values())


def test_a_hypervisor_that_takes_much_makes_long_kernels_doubtful():
    for seconds, doubtful in ((0.2, True), (1e-4, False)):
        clock = FakeClock(stolen=0.2)
        timing = time_candidates([Contender("a", clock.kernel(seconds), seconds)], clock=clock)["a"]
        assert bool(timing.doubt) is doubtful
        assert not doubtful or timing.doubt == "the hypervisor took 20 % of the processors' time while it was timed"


def test_a_trusting_clock_doubts_nothing(monkeypatch):
    monkeypatch.setenv("ROLLER_TRUST_CLOCK", "1")
    assert isinstance(system_or_trusting_clock(), TrustingClock)
    clock = FakeClock(**SPINNING)
    clock.trusting, clock.counted = True, False
    assert time_candidates([Contender("a", clock.kernel(0.1), 0.2)], clock=clock)["a"].doubt == ""
    for text in ("", "0"):
        monkeypatch.setenv("ROLLER_TRUST_CLOCK", text)
        assert not isinstance(system_or_trusting_clock(), TrustingClock)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_what_threads_waited_for_is_lost(tmp_path):
    clock = SystemClock(lambda: [7, 8, 99], tmp_path)
    for thread, waited in ((7, 0), (8, 5_000_000)):
        write(tmp_path, f"proc/self/task/{thread}/schedstat", f"1000 {waited} 3\n")
    clock.attend()
    clock.begin()
    assert clock.end().lost_s < 0.5
    clock.begin()
    write(tmp_path, "proc/self/task/7/schedstat", "1000 2000000000 3\n")
    write(tmp_path, "proc/self/task/8/schedstat", "1000 5000000 3\n")
    write(tmp_path, "proc/self/task/8/schedstat", "1000 505000000 3\n")
    found = clock.end()
    assert (found.lost_s, found.together_s) == (pytest.approx(2.0), pytest.approx(2.5))
    assert found.least_s == 0.0
    assert ClockSample(3.0, 1.0, 1.5).least_s == 1.5
    clock.release()
    assert not clock._stats


def test_a_wait_of_the_caller_is_lost_and_running_is_not():
    with_threads = SystemClock(list)
    with_threads.begin()
    with_threads.rest(0.01)
    found = with_threads.end()
    assert found.wall_s >= 0.01
    assert found.lost_s > 0.5 * found.wall_s
    assert not found.quiet
    assert ClockSample(1.0, QUIET_SHARE).quiet and not ClockSample(1.0, 2 * QUIET_SHARE).quiet


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="only Linux tells of threads")
def test_the_threads_of_this_process_are_found_and_let_go():
    clock = SystemClock(lambda: None)
    clock.attend()
    count = len(clock._stats)
    clock.attend()
    assert len(clock._stats) >= 1 or not os.path.exists("/proc/self/schedstat")
    assert abs(len(clock._stats) - count) <= count, "opened once each"
    clock.release()


STAT = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 10 20 500 5 1 2 30 0 0\ncpu1 200 0 40 300 0 0 0 10 0 0\nintr 5\n"


def test_what_the_processors_did_is_read_from_the_system(tmp_path):
    assert busy_and_stolen_seconds([0, 1], tmp_path) is None
    write(tmp_path, "proc/stat", STAT)
    ticks = os.sysconf("SC_CLK_TCK")
    assert busy_and_stolen_seconds([0], tmp_path) == (133 / ticks, 30 / ticks)
    assert busy_and_stolen_seconds([0, 1], tmp_path) == (373 / ticks, 40 / ticks)
    write(tmp_path, "proc/stat", "cpu0 nonsense\n")
    assert busy_and_stolen_seconds([0], tmp_path) is None


#: A child that is busy until it has had a tenth of a second of processors.
BUSY_S = 0.1
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass"


def busy(root: Path, seconds: float) -> None:
    """Have the first processor be busy for so long by now, and the others never."""
    first, *others = threads.processors()
    ticks = round(seconds * os.sysconf("SC_CLK_TCK"))
    rows = [f"cpu{first} {ticks} 0 0 500 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 500 0 0 0 0 0 0" for n in others)]
    write(root, "proc/stat", "\n".join(rows) + "\n")


def test_a_child_that_was_waited_for_is_nobody_else(tmp_path):
    """Every guarded kernel runs in a child of its own before it is timed."""
    busy(tmp_path, 0.0)
    clock = SystemClock(root=tmp_path)
    before = clock.load()
    subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)
    own_s = clock.load().own_s - before.own_s
    assert own_s >= BUSY_S
    busy(tmp_path, own_s)  # what the system saw of this process and of its child, and of nobody else
    assert Disturbance.between(before, clock.load()).others == 0.0
    busy(tmp_path, own_s + 1.0)
    assert Disturbance.between(before, clock.load()).others > 0.0


def test_halves_of_cores_are_known_or_suspected(tmp_path):
    assert not may_share_cores((0, 1), tmp_path / "nothing")
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor\n")
    assert may_share_cores((0, 1), tmp_path), "a hypervisor may not tell"
    assert not may_share_cores((0,), tmp_path)
    other = tmp_path / "other"
    write(other, "sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n")
    assert may_share_cores((0,), other)


def loads(**after):
    return Load(0.0, processors=4, known=True), Load(2.0, processors=4, known=True, **after)


def test_the_disturbance_is_named_the_strongest_first():
    assert str(Disturbance.between(*loads(own_s=2.0, busy_s=2.02))) == ""
    found = Disturbance.between(*loads(own_s=2.0, busy_s=5.0, stolen_s=0.8, throttled=3))
    assert found.others == pytest.approx(1.5) and found.stolen == pytest.approx(0.1)
    assert str(found) == (
        "other programs kept 1.5 of 4 processors busy, and the hypervisor took 10 % of the processors' time, "
        "and the control group used up its quota of processor time and was stopped"
    )
    assert str(Disturbance.between(Load(0.0), Load(2.0, busy_s=9.0))) == "", "a system that tells nothing"
    assert observe_machine(FakeClock(others=1.2), 0.5).others == pytest.approx(1.2)
    assert math.isfinite(observe_machine(SystemClock(), 0.01).others)
