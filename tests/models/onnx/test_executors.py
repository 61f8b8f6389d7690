"""Builds by any executor, and by the workers of a Dask scheduler, one of which dies."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import roller
from roller.compile_arguments import spec_and_local_device
from roller.errors import RollerError, RollerWarning
from roller.models.batch import executors, worker_tasks
from roller.models.batch.compile_kernels import compile_kernels
from roller.models.batch.executors import ExecutorWorkers, choose_batch_workers
from roller.models.batch.kernel_jobs import BatchSettings, BatchTarget
from roller.runtime.cache import KernelCache
from roller.templates.common.options import ConstructOptions
from roller_runtime.plan.program_steps import KernelSource

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cache():
    return KernelCache()


def compiled(sizes, worker_pool, cache, device="cpu", top_k=1):
    spec, handle = spec_and_local_device(device)
    target = BatchTarget(spec, device == "cpu" or handle is not None, handle.text if handle else "")
    sources = {f"relu{n}": KernelSource(roller.ops.elementwise("relu", (n,))) for n in sizes}
    return compile_kernels(
        sources, target, BatchSettings(ConstructOptions(top_k=top_k)), worker_pool=worker_pool, cache=cache
    )


def works(batch, sizes):
    assert batch.failures == {}
    for n in sizes:
        x = np.linspace(-1, 1, n, dtype=np.float32)
        kernel = roller.CompiledKernel(batch.artifacts[f"relu{n}"])
        np.testing.assert_array_equal(kernel(x), np.maximum(x, 0))
    return True


def test_threads_build(cache):
    with ThreadPoolExecutor(2) as pool:
        batch = compiled([64, 4096], choose_batch_workers(pool, None, None), cache, top_k=2)
        assert pool.submit(int, "3").result() == 3  # it is the caller's, and still open
    assert works(batch, [64, 4096]) and set(batch.origins.values()) == {"compiled"}
    assert all(a.measured_s for a in batch.artifacts.values())


def test_processes_that_know_nothing_build(cache):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert works(compiled([64], choose_batch_workers(pool, None, None), cache), [64])


def test_processes_that_die_are_reasons(cache, monkeypatch):
    monkeypatch.setattr(worker_tasks.BuildTask, "run", lambda task: os._exit(3))
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        batch = compiled([64, 128], choose_batch_workers(pool, None, None), cache)
    assert not batch.artifacts and set(batch.failures) == {"relu64", "relu128"}
    assert all("crashed: BrokenProcessPool" in why for why in batch.failures.values())


class Deserted:
    """Takes tasks, as a scheduler does whose only worker died, and does none."""

    def submit(self, *arguments):
        return Future()


def test_tasks_of_workers_that_are_gone_are_done_here(monkeypatch):
    class Here:
        def map(self, tasks, on_result, patient):
            return {name: f"{task} here" for name, task in tasks.items()}

        def judge(self, task):
            return {"judged": task}

        def close(self):
            pass

    monkeypatch.setattr(executors, "_ALONE_S", 0.02)
    monkeypatch.setattr(executors, "_LOOK_S", 0.01)
    asked = []
    worker_pool = ExecutorWorkers(
        Deserted(), bench=Deserted(), benches=1, staffed=lambda judging: asked.append(judging), _here=Here()
    )
    with pytest.warns(RollerWarning, match="its workers died and were not replaced"):
        assert worker_pool.map({"a": "one", "b": "two"}) == {"a": "one here", "b": "two here"}
    with pytest.warns(RollerWarning, match="run on this machine"):
        assert worker_pool.judge("kernels") == {"judged": "kernels"}
    assert worker_pool.bench is None and set(asked) == {False, True}


def test_an_executor_that_is_shut_down_is_a_reason(cache):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    assert "cannot schedule new futures" in compiled([64], ExecutorWorkers(pool), cache).failures["relu64"]


def test_a_worker_with_other_sources_builds_nothing():
    with pytest.raises(RollerError, match="expected the caller's version of roller"):
        worker_tasks.run_task(worker_tasks.ConstructTask(None, None, None, None), code="another")


def test_no_scheduler_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("roller.models.batch.executors._CONNECT_S", 0.2)
    with pytest.raises(RollerError, match=r"scheduler: expected an address with a port .*, got 'foo'"):
        choose_batch_workers(None, "foo", None, "gpu")
    with pytest.raises(RollerError, match=r"scheduler: expected a Dask scheduler at 'tcp://127.0.0.1:9', got none"):
        choose_batch_workers(None, "tcp://127.0.0.1:9", None)


@contextlib.contextmanager
def cluster(folder, resources, build_s):
    """Run a scheduler and one single-threaded worker process per entry; yield its address and the processes."""
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "ROLLER_TEST_LOG": str(folder / "log"),
        "ROLLER_TEST_BUILD_S": str(build_s), "ROLLER_CACHE_DIR": str(folder / "elsewhere"),
    }  # fmt: skip
    file = folder / "scheduler.json"
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    worker = ["worker", "--host", "127.0.0.1", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny",
              "--no-dashboard", "--local-directory", str(folder),
              "--preload", "tests.models.onnx.slow_builds"]  # fmt: skip
    commands = [scheduler, *([*worker, *(["--resources", r] if r else [])] for r in resources)]
    with contextlib.ExitStack() as stack:
        running = []
        for command in commands:
            log = stack.enter_context(open(folder / f"{len(running)}.out", "wb"))
            python = [sys.executable, "-m", f"distributed.cli.dask_{command[0]}", *command[1:]]
            running.append(subprocess.Popen(python, env=env, cwd=ROOT, stdout=log, stderr=log))
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        end = time.monotonic() + 30
        while not file.exists() or not file.read_text().strip().endswith("}"):
            assert time.monotonic() < end and running[0].poll() is None, (folder / "0.out").read_text()
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"], running[1:]


def lines(folder):
    log = folder / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def wait_for_workers(address, count):
    import distributed

    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=30)


@pytest.mark.slow
def test_a_killed_dask_worker_loses_nothing(cache, tmp_path):
    sizes = [1 << n for n in range(6, 14)]
    with cluster(tmp_path, ["cpu_slot=1", "", ""], build_s=0.7) as (address, workers):
        wait_for_workers(address, 3)
        victim = workers[2]

        def kill_in_the_middle():
            while not any(what == "build" and int(pid) == victim.pid for what, pid, _ in lines(tmp_path)):
                time.sleep(0.02)
            victim.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill_in_the_middle)
        killer.start()
        worker_pool = choose_batch_workers(None, address, None)
        try:
            assert (worker_pool.workers, worker_pool.benches) == (3, 1)
            batch = compiled(sizes, worker_pool, cache)
        finally:
            worker_pool.close()
        killer.join()
        victim.wait()
        log = lines(tmp_path)
    assert not batch.failures and works(batch, sizes)
    lost = {n for what, pid, n in log if what == "build" and int(pid) == victim.pid} - {
        n for what, pid, n in log if what == "built" and int(pid) == victim.pid
    }
    assert len(lost) == 1  # it died in the middle of a build, which another worker then did
    assert {int(n) for what, pid, n in log if what == "built" and int(pid) != victim.pid} >= {int(n) for n in lost}
    assert {int(pid) for what, pid, _ in log if what == "judge"} == {workers[0].pid}
    info = cache.info()
    assert (info["entries"], info["entries_measured"]) == (len(sizes), len(sizes))
    assert len(cache.measurements()) == len(sizes)  # one candidate each, none twice


@pytest.mark.slow
def test_gpu_kernels_are_judged_where_the_gpu_is(cache, tmp_path):
    with cluster(tmp_path, ["", "gpu=1"], build_s=0.0) as (address, workers):
        wait_for_workers(address, 2)
        worker_pool = choose_batch_workers(None, address, None, "gpu")
        try:
            batch = compiled([64, 128], worker_pool, cache, device="null:v100", top_k=2)
        finally:
            worker_pool.close()
        assert {int(pid) for what, pid, _ in lines(tmp_path) if what == "judge"} == {workers[1].pid}
    assert all(a.measured_s for a in batch.artifacts.values())
