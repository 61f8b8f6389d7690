"""Metrics of sessions: exact counts from any number of threads, durations, classes of sizes."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import math
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.artifact import DOUBT
from roller.errors import LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.saved import load_model
from roller.models.session.start_session import start_session
from roller_runtime.cpu.threads import processors
from roller_runtime.session.call_metrics import (
    MOST_SIZE_CLASSES,
    CallMeter,
    HeldArenas,
    LatencyHistogram,
    SizeClassMeters,
)
from roller_runtime.session.cpu_session import Session
from tests.models.session import programs

THREADS, CALLS = 8, 2000
FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def session() -> Session:
    program = programs.mixed()
    return start_session(plan_memory(program), programs.kernels(program), cores=1)


def fails(*arguments: object) -> None:
    raise KeyError(arguments)


# --- counts -------------------------------------------------------------------------------------------------------


def test_a_session_counts_its_calls(session):
    fed = programs.feeds(programs.mixed())
    assert session.metrics().calls == 0 and session.metrics().latency.p99_s is None
    start = time.perf_counter()
    for _ in range(3):
        session.run(fed)
    session(*fed.values())
    session.run(None, fed)
    whole = time.perf_counter() - start
    found = session.metrics()
    assert (found.calls, found.failures, found.in_progress, found.by_sizes) == (5, 0, 0, None)
    latency = found.latency
    assert 0 < latency.min_s <= latency.p50_s <= latency.p99_s <= latency.max_s <= latency.sum_s <= whole
    assert (found.arenas, found.arena_bytes, found.doubt) == (1, session.plan.arena_bytes, "")


def test_calls_that_raise_are_failures_and_have_no_duration(session, monkeypatch):
    fed = programs.feeds(programs.mixed())
    for wrong in ({}, {**fed, "unknown": 1}, {n: a[..., :1] for n, a in fed.items()}):
        with pytest.raises(LaunchError):
            session.run(wrong)
    with pytest.raises(LaunchError):
        session.run(["nothing"], fed)
    monkeypatch.setattr(session, "_call", fails)
    with pytest.raises(KeyError):
        session.run(fed)
    found = session.metrics()
    assert (found.calls, found.failures, found.in_progress, found.latency.count) == (5, 5, 0, 0)


def test_an_interrupted_call_is_a_failure_and_is_not_running(session, monkeypatch):
    def interrupted(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session, "_call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(programs.feeds(programs.mixed()))
    found = session.metrics()
    assert (found.failures, found.in_progress) == (1, 0)


def count_in_threads(metrics, succeed, fail) -> None:
    """Call from several threads while another one reads the metrics; assert that no call is lost or invented."""
    done, seen = threading.Event(), [metrics()]

    def read() -> None:
        while not done.is_set():
            seen.append(metrics())
            time.sleep(0.001)

    def work(number: int) -> None:
        for n in range(CALLS):
            if n % 10 != number:
                succeed()
                continue
            with pytest.raises((LaunchError, KeyError)):
                fail()

    reader = threading.Thread(target=read)
    reader.start()
    workers = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done.set()
    reader.join()
    found = metrics()
    assert (found.calls, found.failures, found.in_progress) == (THREADS * CALLS, THREADS * CALLS // 10, 0)
    assert all(a.calls <= b.calls and a.failures <= b.failures for a, b in itertools.pairwise(seen))
    assert max(m.in_progress for m in seen) <= THREADS


def test_counts_of_many_threads_are_exact_while_metrics_are_read():
    meter = CallMeter()
    count_in_threads(
        meter.metrics, lambda: meter.measure(lambda *_: None, 0, 0, False), lambda: meter.measure(fails, 0, 0, False)
    )
    assert not meter._recorded


def test_calls_of_a_session_in_many_threads_are_counted_exactly(session):
    fed = programs.feeds(programs.mixed())
    count_in_threads(session.metrics, lambda: session.run(fed), lambda: session.run({}))
    assert session.metrics().arenas <= max(2, len(processors()))


def test_counts_outlive_their_threads_and_nothing_is_kept_of_these():
    meter = CallMeter()
    for _ in range(300):
        thread = threading.Thread(target=meter.measure, args=(lambda *_: None, None, None, False))
        thread.start()
        thread.join()
    assert meter.metrics().calls == 300
    for _ in range(5000):
        with pytest.raises(KeyError):
            meter.measure_since(None, fails)
    assert len(meter._recorded) < 1000, "failures alone do not pile up"


def test_a_running_call_is_in_progress():
    meter, started, go = CallMeter(), threading.Event(), threading.Event()

    def call(*_: object) -> None:
        started.set()
        assert go.wait(30)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = pool.submit(meter.measure, call, None, None, False)
        assert started.wait(30)
        found = meter.metrics()
        assert (found.calls, found.in_progress) == (0, 1)
        go.set()
        made.result()
    assert (meter.metrics().calls, meter.metrics().in_progress) == (1, 0)


@FORK
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads: what is tested
def test_a_process_forked_during_calls_counts_its_own_from_zero():
    meter, started, go = CallMeter(), threading.Event(), threading.Event()

    def held(*_: object) -> None:
        with meter._lock:
            started.set()
            assert go.wait(30)

    meter.measure(lambda *_: None, None, None, False)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(meter.measure, held, None, None, False)
        assert started.wait(30)
        child = os.fork()
        if not child:
            signal.alarm(20)
            code = 1
            try:
                before = meter.metrics()
                meter.measure(lambda *_: None, None, None, False)
                after = meter.metrics()
                code = int((before.calls, before.in_progress, after.calls, after.in_progress) != (0, 0, 1, 0))
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go.set()
    assert meter.metrics().calls == 2


def test_arenas_are_counted_as_long_as_they_exist(session):
    frames = [session._frame() for _ in range(5)]
    size = session.plan.arena_bytes
    assert (session.metrics().arenas, session.metrics().arena_bytes) == (6, 6 * size)
    del frames[1:]
    gc.collect()
    assert session.metrics().arenas == 2
    held = HeldArenas()
    held.add(np.empty(3, np.uint8))
    assert held.sizes_bytes() == []


def test_doubt_is_that_of_the_kernels(session):
    key, last = list(session.artifacts.items())[-1]
    session.artifacts = {**session.artifacts, key: replace(last, build={**last.build, DOUBT: "busy"})}
    assert session.metrics().doubt == f"busy (1 of {len(session.artifacts)} kernels)"


def test_metrics_do_not_fail_when_the_folder_is_gone(session, tmp_path):
    loaded = load_model(session.save(tmp_path / "mixed"))
    shutil.rmtree(tmp_path / "mixed")
    loaded.run(programs.feeds(programs.mixed()))
    found = loaded.metrics()
    assert found.calls == 1 and found.doubt.startswith("unknown, because the folder's sources cannot be read: ")


# --- durations ----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-7, 100.0), min_size=1, max_size=200), st.floats(0, 1))
def test_quantiles_are_within_the_bucket_of_the_exact_ones(seconds, q):
    found = LatencyHistogram.of(seconds)
    assert (found.count, found.min_s, found.max_s) == (len(seconds), min(seconds), max(seconds))
    assert math.isclose(found.sum_s, math.fsum(seconds)) and math.isclose(found.mean_s, np.mean(seconds))
    exact = sorted(seconds)[max(0, math.ceil(q * len(seconds)) - 1)]
    ends = [0.0, *LatencyHistogram.BOUNDS_S, math.inf]
    n = next(n for n, high in enumerate(ends[1:]) if exact <= high)
    assert ends[n] <= found.quantile_s(q) <= ends[n + 1] and found.min_s <= found.quantile_s(q) <= found.max_s


def test_a_bound_belongs_to_its_bucket_and_bounds_are_those_documented():
    bounds = LatencyHistogram.BOUNDS_S
    assert bounds[:7] == (1e-5, 1.5e-5, 2e-5, 3e-5, 5e-5, 7e-5, 1e-4) and bounds[-1] == 10.0 and len(bounds) == 37
    assert list(bounds) == sorted(set(bounds))
    assert LatencyHistogram.of(bounds).counts == (1,) * len(bounds) + (0,)
    assert LatencyHistogram.of([11.0]).counts[-1] == 1


@pytest.mark.parametrize("q", [-0.1, 1.1, 99, math.nan, "0.5", True, None])
def test_a_share_that_is_none_is_refused(q):
    with pytest.raises(LaunchError, match="q: expected a share from 0 to 1, got"):
        LatencyHistogram.of([1.0]).quantile_s(q)


@given(st.lists(st.floats(1e-6, 20.0), max_size=50), st.lists(st.floats(1e-6, 20.0), max_size=50))
def test_histograms_add_up(one, other):
    both, whole = LatencyHistogram.of(one) + LatencyHistogram.of(other), LatencyHistogram.of(one + other)
    assert (both.counts, both.min_s, both.max_s) == (whole.counts, whole.min_s, whole.max_s)
    assert math.isclose(both.sum_s, whole.sum_s)


# --- classes of sizes ---------------------------------------------------------------------------------------------

RANGES = st.tuples(st.integers(0, 5000), st.integers(0, 10**9)).map(lambda ends: (ends[0], sum(ends)))
ENDS = st.dictionaries(st.text(max_size=3), RANGES, min_size=1, max_size=8)


@given(ENDS, st.data())
def test_classes_are_few_and_every_size_is_in_one(ends, data):
    meters = SizeClassMeters(ends)
    names = set()
    for _ in range(20):
        sizes = {n: data.draw(st.sampled_from([low, high]) | st.integers(low, high)) for n, (low, high) in ends.items()}
        name = meters.name_of_class(sizes)
        assert meters.of(sizes) is meters.of(sizes)
        names.add(name)
        if all(re.fullmatch("[a-z]+", n) for n in ends):
            for said, size in zip(name.split(","), sizes.values(), strict=True):
                low, _, high = said.partition("=")[2].partition("..")
                assert int(low) <= size <= int(high or low)
    assert len(names) <= MOST_SIZE_CLASSES
    assert math.prod(map(len, meters._bounds.values())) <= MOST_SIZE_CLASSES


def test_classes_end_at_powers_of_two_or_of_four_where_there_are_too_many():
    assert SizeClassMeters({"n": (64, 640)})._bounds == {"n": (64, 128, 256, 512, 640)}
    assert SizeClassMeters({"batch": (1, 8), "length": (1, 512)})._bounds == {
        "batch": (1, 2, 4, 8), "length": (1, 4, 16, 64, 256, 512),
    }  # fmt: skip


class FixedSizes:
    """What a meter needs of a session."""

    def __init__(self, meter: CallMeter) -> None:
        self._meter = meter

    def _run(self, arguments, out=None, on_device=False):
        return arguments


def test_a_call_that_prepares_sizes_lasts_as_long_as_its_caller_waits():
    meters = SizeClassMeters({"n": (1, 9)})

    def prepare(arguments):
        if arguments[0] > 9:
            raise LaunchError("too large")
        time.sleep(0.05)
        return FixedSizes(meters.of({"n": arguments[0]}))

    assert meters.measure_with_preparation(prepare, (3,), {}) == (3,)
    with pytest.raises(LaunchError):
        meters.measure_with_preparation(prepare, (10,), {})
    total, classes = meters.metrics()
    assert (total.calls, total.failures, list(classes)) == (2, 1, ["n=3..4"])
    assert classes["n=3..4"].latency.min_s >= 0.05 and total.latency == classes["n=3..4"].latency
