"""The native runner's threads: every task runs once, whoever calls, however deep, also after a fork."""

from __future__ import annotations

import concurrent.futures
import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from roller.errors import BuildError, LaunchError
from roller.runtime.session import native_runner_build as module
from roller.runtime.session.native_runner_build import load_or_build_runner_image
from roller_runtime.session.native_frame import count_tasks_of_loop
from roller_runtime.session.native_runner import load_runner

CHECKS = Path(__file__).with_name("pool_check.c")
TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture(scope="module")
def runner():
    return load_runner(module._compile_runner())


@pytest.fixture(scope="module")
def launch(runner):
    return ctypes.CFUNCTYPE(ctypes.c_int, TASK, ctypes.c_void_p, ctypes.c_int)(runner.launch)


def count(runner, launch, tasks: int, threads: int = 3, fail_at: int = -1) -> tuple[int, list[int]]:
    """Run tasks; return the launch's result and which tasks ran."""
    ran: list[int] = []

    def task(number, _group, _data):
        ran.append(number)
        return int(number == fail_at)

    runner.use_threads(threads)
    return launch(TASK(task), None, tasks), sorted(ran)


def test_every_task_runs_once_in_any_number_of_callers(runner, launch):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: count(runner, launch, 1 + n % 9, 1 + n % 4), range(120)))
    assert found == [(0, list(range(1 + n % 9))) for n in range(120)]


def test_without_a_number_there_are_as_many_tasks_as_threads(runner, launch):
    assert count(runner, launch, 0, threads=3) == (0, [0, 1, 2])
    assert count(runner, launch, 0, threads=1) == (0, [0])


def test_a_task_that_fails_fails_the_launch_and_the_next_one_works(runner, launch):
    assert count(runner, launch, 5, fail_at=3) == (-1, [0, 1, 2, 3, 4])
    assert count(runner, launch, 5) == (0, [0, 1, 2, 3, 4])


def test_a_launch_within_a_task_runs_in_its_thread(runner, launch):
    threads: list[set[int]] = []

    def outer(_number, _group, _data):
        mine: set[int] = set()

        def inner(_n, _g, _d):
            mine.add(threading.get_ident())
            return 0

        launch(TASK(inner), None, 4)
        threads.append(mine)
        return int(mine != {threading.get_ident()})

    runner.use_threads(3)
    assert launch(TASK(outer), None, 6) == 0
    assert len(threads) == 6


def _child(runner, launch, pipe) -> None:
    pipe.send([count(runner, launch, 6) for _ in range(20)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads: what is tested
def test_a_forked_process_starts_threads_of_its_own(runner, launch):
    assert count(runner, launch, 6)[0] == 0
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_child, args=(runner, launch, theirs))
    child.start()
    assert ours.poll(30)
    assert ours.recv() == [(0, [0, 1, 2, 3, 4, 5])] * 20
    child.join(30)
    assert child.exitcode == 0


@hypothesis.given(st.integers(1, 5000), st.integers(1, 16), st.floats(0, 1e-2))
def test_more_tasks_never_cost_an_undisturbed_thread_an_iteration(extent, threads, seconds):
    tasks = count_tasks_of_loop(extent, threads, seconds)
    each = -(-extent // tasks)  # as TVM divides them
    used = -(-extent // each)
    assert threads <= tasks <= max(threads, 9 * threads)
    assert -(-max(used, 1) // threads) * each <= -(-extent // threads)


def test_long_loops_are_cut_into_more_tasks_than_threads():
    assert [count_tasks_of_loop(256, 2, s) for s in (0.0, 5e-6, 2.5e-5, 1.0)] == [2, 2, 4, 16]


@pytest.mark.parametrize("check", ["stress", "limit", "rescued", "beckoned", "freed", "ended", "forked", "forgotten"])
def test_the_threads_of_a_launch(check, pool_check):
    """Every task once and in order, never more threads than allowed, and who lost its processor gets another one."""
    done = subprocess.run([pool_check, check], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


@pytest.fixture(scope="module")
def pool_check(tmp_path_factory) -> Path:
    if not sys.platform.startswith("linux"):
        pytest.skip("affinities and clocks of threads are those of Linux")
    return compiled(tmp_path_factory.mktemp("pool") / "check", "-O2")


def compiled(program: Path, *flags: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, *flags, "-w", "-pthread", "-o", str(program), str(CHECKS)], check=True, timeout=60)
    return program


@pytest.mark.slow
def test_the_threads_of_a_launch_race_for_nothing(tmp_path):
    try:
        program = compiled(tmp_path / "check", "-g", "-O1", "-fsanitize=thread")
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no thread sanitizer")
    for check in ("stress", "limit"):
        done = subprocess.run([program, check], capture_output=True, text=True, timeout=100)
        assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr[-3000:]


def test_the_library_is_compiled_once_and_kept(cache_dir, monkeypatch):
    image = load_or_build_runner_image()
    monkeypatch.setattr(module, "_compile_runner", lambda: pytest.fail("compiled again"))
    assert load_or_build_runner_image() == image
    assert [p.suffix for p in (cache_dir / "runner").iterdir()] == [".so"]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "file"))
    assert load_or_build_runner_image() == module._compile_runner()


def test_without_a_compiler_the_error_names_them(monkeypatch):
    monkeypatch.setenv("PATH", "")
    module._compile_runner.cache_clear()  # the next test that needs it compiles it again
    with pytest.raises(BuildError, match=r"expected a C compiler .*gcc.* on PATH, found none"):
        load_or_build_runner_image()


def test_what_is_no_library_is_refused():
    with pytest.raises(LaunchError, match="the native runner: cannot load it"):
        load_runner(b"nonsense")
