"""The number of threads of CPU kernels: how it is given, and that one thread means that no other one wakes."""

import os

import numpy as np
import pytest

import roller
from roller import ops
from roller.compiler.pipeline import ConstructOptions, lower
from roller.errors import LaunchError
from roller_runtime.cpu import threads
from tests.backends.kernel_processes import LINUX, TWO, K, M, N, in_thread, make_matmul, python, run


@pytest.fixture(autouse=True)
def _all_processors(monkeypatch):
    """Let pools have the threads that users get: other tests run with one, see conftest.py."""
    monkeypatch.setenv("TVM_NUM_THREADS", str(len(threads.processors())))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return make_matmul().artifact.save(tmp_path_factory.mktemp("kernel") / "matmul.json")


def test_a_loaded_kernel_uses_as_many_threads_as_are_asked_for_and_there_are(saved):
    def pool(count):
        run(roller.load(saved, threads=count))
        return threads._pools.mine.cores, len(threads._pools.mine.workers)

    here = threads.count_simultaneous_threads()
    for count in (1, 2, here, 1000):
        used = min(count, here)
        placed = used - 1 if hasattr(os, "sched_setaffinity") else 0
        assert in_thread(lambda count=count: pool(count)) == (used, placed)
    assert roller.load(saved).artifact.target["cores"] == roller.load(saved, threads=2).artifact.target["cores"]


def test_a_kernel_compiled_for_one_thread_has_no_parallel_loops(tmp_path):
    e = ops.matmul(M, N, K)
    one = roller.compile(e, top_k=1, threads=1, cache=False)
    assert (one.artifact.target["cores"], one.artifact.target["parallel"]) == (1, False)
    assert not in_thread(lambda: run(one) or hasattr(threads._pools, "mine"))
    again = roller.load(one.save(tmp_path / "one.json"), threads=4)
    assert not in_thread(lambda: run(again) or hasattr(threads._pools, "mine")), "kernels are not changed"


def test_all_processors_and_more_are_the_default():
    found = [ConstructOptions().with_threads(n, 8) for n in (1, 7, 8, 9, 2**62)]
    assert [o.units for o in found] == [1, 7, None, None, None]
    assert [ConstructOptions(units=3).with_threads(n, 8).units for n in (2, 3, 9)] == [2, 3, 3]


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2", None.__class__, 2**70])
def test_a_number_of_threads_that_is_none_is_refused(saved, count):
    message = r"threads: expected a whole number of at least 1.*, got "
    with pytest.raises(LaunchError, match=message):
        roller.load(saved, threads=count)
    with pytest.raises(LaunchError, match=message):
        roller.compile(ops.matmul(M, N, K), threads=count)
    with pytest.raises(LaunchError, match=message):
        roller.compile(ops.matmul(M, N, K), shapes={"i": range(1, 9)}, threads=count)


def test_kernels_of_a_gpu_use_no_threads(tmp_path):
    message = "threads: expected none for a GPU, whose calls use no threads. Leave it out."
    for device in ("v100", "null:v100", "ipu_mk2"):
        with pytest.raises(LaunchError, match=message):
            roller.compile(ops.matmul(M, N, K), device, threads=1)
    e = ops.matmul(M, N, K)
    spec = roller.load_spec("v100")
    path = lower(roller.construct(e, spec, top_k=1)[0].program, e, spec).save(tmp_path / "gpu.json")
    with pytest.raises(LaunchError, match=message):
        roller.load(path, threads=1)


@pytest.mark.parametrize("shapes", [{"i": range(1, 40)}, {"i": range(1, 40), "j": range(1, 60)}], ids=["one", "two"])
def test_kernels_for_a_range_use_as_many_threads_as_are_asked_for(shapes):
    made = roller.compile(ops.matmul(40, 60, K), shapes=shapes, threads=1, deterministic=True)
    assert {k.artifact.target["cores"] for k in made.kernels} == {1}
    a, b = np.ones((M, K), np.float32), np.ones((K, 60 if len(shapes) == 1 else N), np.float32)
    assert in_thread(lambda: (made(a, b) == K).all() and not hasattr(threads._pools, "mine"))


#: Prints the number of threads, and how often threads other than this one were switched to, before and after calls.
SWITCHES = """
import threading
def others():
    here, found = str(threading.get_native_id()), {}
    for task in os.listdir("/proc/self/task"):
        if task != here:
            with open(f"/proc/self/task/{task}/status") as file:
                found[task] = sum(int(line.split()[1]) for line in file if "ctxt_switches" in line)
    return found
"""


@LINUX
@TWO
def test_a_kernel_with_one_thread_starts_and_wakes_no_other(saved):
    script = f"""
{SWITCHES}
import roller
one = roller.load(sys.argv[1], threads=1)
before = others()
for _ in range(100): assert (one(a, b) == 17).all()
print(before == others())
run()
print(before != others())
"""
    assert python(saved, script) == ["True", "True"]


@LINUX
@TWO
def test_a_kernel_with_one_thread_lets_the_workers_of_others_sleep(saved):
    script = f"""
{SWITCHES}
import roller
one = roller.load(sys.argv[1], threads=1)
run()
for _ in range(600):  # until the worker sleeps
    before = others()
    time.sleep(0.1)
    if before == others():
        break
for _ in range(100): assert (one(a, b) == 17).all()
print(before == others(), len(before) >= 1)
run()
for _ in range(600):  # a worker's switches are counted when it stops running, not when it begins
    if before != others():
        break
    time.sleep(0.1)
print(before != others(), threads._pools.mine.cores, in_child(run), in_child(lambda: one(a, b)))
"""
    assert python(saved, script) == ["True", "True", "True", "2", "7", "7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_fork_starts_no_workers_for_a_thread_that_has_none(saved):
    script = """
import roller
one = roller.load(sys.argv[1], threads=1)
one(a, b)
before = set(os.listdir("/proc/self/task"))
print(in_child(lambda: one(a, b)), in_child(run), set(os.listdir("/proc/self/task")) <= before)
"""
    assert python(saved, script, OPENBLAS_NUM_THREADS="1") == ["7", "7", "True"]  # OpenBLAS renews its own threads
