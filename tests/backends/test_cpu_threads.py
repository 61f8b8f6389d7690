"""Worker threads of CPU kernels: where they run, whom they leave alone, and what a fork does to them."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller import ops
from roller_runtime.cpu import threads
from tests.backends.kernel_processes import LINUX, TWO, in_thread, make_matmul, python, run
from tests.codegen.cpu_programs import canonical, kernel, program


@pytest.fixture(autouse=True)
def _all_processors(monkeypatch):
    """Let pools have the threads that users get: other tests run with one, see conftest.py."""
    monkeypatch.setenv("TVM_NUM_THREADS", str(len(threads.processors())))


@pytest.fixture(scope="module")
def matmul():
    return make_matmul()


@pytest.fixture(scope="module")
def saved(matmul, tmp_path_factory):
    return matmul.artifact.save(tmp_path_factory.mktemp("kernel") / "matmul.json")


# --- places ---------------------------------------------------------------------------------------

machines = st.builds(
    lambda cpus, ways, at: (sorted(cpus), ways, sorted(cpus)[at % len(cpus)]),
    st.sets(st.integers(0, 40), min_size=1, max_size=16), st.sampled_from([1, 2, 4]), st.integers(0, 99),
)  # fmt: skip


@given(machines, st.integers(0, 20))
def test_places_spare_the_caller_and_are_distinct_while_they_last(machine, workers):
    cpus, ways, caller = machine
    got = threads.assign_worker_processors(workers, caller, cpus, lambda cpu: str(cpu // ways))
    assert len(got) == workers
    for where in got:
        assert where and where <= set(cpus)
        assert caller not in where or cpus == [caller]
    if workers < len(cpus):
        assert all(len(where) == 1 for where in got)
        assert len(set().union(*got)) == workers


@given(machines, st.integers(0, 20))
def test_whole_cores_come_before_their_siblings(machine, workers):
    cpus, ways, caller = machine
    got = threads.assign_worker_processors(workers, caller, cpus, lambda cpu: str(cpu // ways))
    if workers >= len(cpus):
        return
    used = [next(iter(where)) // ways for where in got]
    shared = [core for i, core in enumerate(used) if core in (caller // ways, *used[:i])]
    free_cores = {cpu // ways for cpu in cpus} - {caller // ways}
    assert len(shared) == max(0, workers - len(free_cores))
    assert used[len(used) - len(shared) :] == shared


def test_the_name_of_a_core_is_that_of_its_siblings(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "_PROCESSORS", tmp_path)
    for cpu, siblings in ((900, "900-901\n"), (901, "900-901\n")):
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(siblings)
    assert threads.core_id_of_processor(900) == threads.core_id_of_processor(901) == "900-901"
    assert threads.core_id_of_processor(902) == "902"


# --- workers of a running kernel ------------------------------------------------------------------


@LINUX
@TWO
def test_workers_are_placed_off_the_caller_and_the_caller_stays_free(matmul):
    def work():
        before = os.sched_getaffinity(0)
        run(matmul)
        pool = threads._pools.mine
        assert pool.cores == 2
        assert len(pool.workers) == 1
        assert threading.get_native_id() not in pool.workers
        places = [os.sched_getaffinity(w) for w in pool.workers]
        return before, os.sched_getaffinity(0), pool.caller, places

    before, after, caller, places = in_thread(work)
    assert before == after
    assert all(caller not in where for where in places)


@LINUX
@TWO
@pytest.mark.parametrize("first", [True, False], ids=["bound before", "bound after"])
def test_a_bound_caller_gets_workers_elsewhere(matmul, first):
    here = threads.processors()[-1]

    def work():
        if not first:
            run(matmul)
        os.sched_setaffinity(0, {here})
        run(matmul)
        return os.sched_getaffinity(0), [os.sched_getaffinity(w) for w in threads._pools.mine.workers]

    caller, places = in_thread(work)
    assert caller == {here}
    assert places
    assert all(here not in where for where in places)


@LINUX
@TWO
def test_workers_move_when_their_caller_does(matmul):
    def work():
        found = []
        for here in threads.processors()[:2]:
            os.sched_setaffinity(0, {here})
            run(matmul)
            found.append((here, [os.sched_getaffinity(w) for w in threads._pools.mine.workers]))
        return found

    for here, places in in_thread(work):
        assert all(here not in where for where in places)


@LINUX
@TWO
def test_a_refused_placement_is_no_error(matmul, monkeypatch):
    def refuse(_thread, _where):
        raise PermissionError("sandbox")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert in_thread(lambda: run(matmul) or threads._pools.mine.workers) == []


def test_a_kernel_without_parallel_loops_has_no_pool():
    e = ops.matmul(4, 16, 4)
    small = kernel(e, program(canonical(e), "tiled", {"i": 4, "j": 16}, vector="j"))

    def work():
        small(np.ones((4, 4), np.float32), np.ones((4, 16), np.float32))
        return hasattr(threads._pools, "mine")

    assert small.artifact.target["parallel"] is False
    assert not in_thread(work)


# --- processes of their own -----------------------------------------------------------------------


@LINUX
def test_one_processor_is_enough(saved):
    bind = f"import os; os.sched_setaffinity(0, {{{threads.processors()[0]}}})\n"
    script = "run(); print(len(threads.processors()), threads._pools.mine.workers)"
    assert python(saved, script, before=bind) == ["1", "[]"]


def test_threads_the_user_binds_are_left_alone(saved):
    assert python(saved, "run(); print(threads._pools.mine.workers)", TVM_BIND_THREADS="1") == ["[]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("pause_s", [0, 0.5], ids=["workers awake", "workers asleep"])
def test_a_forked_process_runs_kernels_and_ends(saved, pause_s):
    script = f"""
run()
time.sleep({pause_s})
print(in_child(run), in_child(lambda: None), in_child(lambda: run() or sys.exit(in_child(run))))
run()
"""
    assert python(saved, script, TVM_THREAD_POOL_SPIN_COUNT="100000") == ["7", "7", "7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_forked_before_any_kernel_or_by_another_thread_runs_kernels(saved):
    script = """
print(in_child(run))
import threading
thread = threading.Thread(target=run)
thread.start(); thread.join()
print(in_child(run))
"""
    assert python(saved, script) == ["7", "7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@TWO
@pytest.mark.parametrize("asleep", [True, False])
def test_workers_that_slept_during_a_fork_are_not_waited_for(saved, asleep):
    """TVM would wait for them forever: kernels run on one thread."""
    script = f"""
if {asleep}:
    threads._is_parents_thread_awake = lambda thread: False
def alone():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(), run()
    words = [str(w.message) for w in told]
    print(len(threads._pools.mine.workers), len(words), all("alone" in w and "'spawn'" in w for w in words))
    sys.stdout.flush()
run()
print(in_child(alone, os._exit))
"""
    alone, together = ["0", "1", "True", "7"], ["1", "0", "True", "7"]
    # On a busy machine, they may also sleep where nobody pretends it.
    assert python(saved, script) in ([alone] if asleep else [together, alone])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@TWO
@pytest.mark.parametrize("first", ["many(wait)", "many(pass_)", "many(run)", "square @ square"])
def test_a_forked_process_may_start_other_threads_before_it_runs_kernels(saved, first):
    """They take the memory of its parent's workers, which TVM joins when it replaces them."""
    script = f"""
import threading
square = np.ones((600, 600))
wait, pass_ = threading.Event().wait, lambda: None
def many(work):
    started = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    [t.start() for t in started]
    [t.join(0 if work is wait else None) for t in started]
run()
print(*[in_child(lambda: ({first}, run(), run()), os._exit) for _ in range(3)])
"""
    assert python(saved, script) == ["7", "7", "7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@TWO
def test_a_runtime_that_replaces_no_workers_is_refused_in_a_forked_process(saved):
    script = """
from roller.errors import LaunchError
threads._RESET = threads._LIMIT = "a later TVM lacks it"
def refused():
    try:
        run()
    except LaunchError as err:
        assert "forked" in str(err) and "'forkserver'" in str(err), err
    else:
        os._exit(1)
run()
print(in_child(refused, os._exit))
"""
    assert python(saved, script) == ["7"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@TWO
@pytest.mark.parametrize("reuse", [True, False])
def test_the_projects_own_processes_have_workers_whatever_those_of_their_parent_did(saved, reuse):
    """Workers poll once and sleep: those of the parent sleep during the fork."""
    script = f"""
from roller.runtime.build_pool import build_all
def job(n):
    run()
    return len(threads._pools.mine.workers)
run()
time.sleep(0.1)
done = build_all(dict.fromkeys("abc", 1), job, workers=1, reuse={reuse})
print(*[done[n].value for n in "abc"])
"""
    assert python(saved, script, TVM_THREAD_POOL_SPIN_COUNT="1") == ["1", "1", "1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@TWO
def test_a_kernel_is_run_between_guard_pages_whatever_the_workers_of_the_parent_did(saved):
    script = """
from roller.runtime import guard_pages
once = guard_pages.run_once_on_allocated_memory
def dies_of_success(kernel, allocate):
    once(kernel, allocate)
    signal.raise_signal(signal.SIGSEGV)
run()
time.sleep(0.1)
print(guard_pages.kernels_with_bad_accesses({"a": kernel}))
guard_pages.run_once_on_allocated_memory = dies_of_success
print(guard_pages.kernels_with_bad_accesses({"a": kernel}))
"""
    assert python(saved, script, TVM_THREAD_POOL_SPIN_COUNT="1") == ["[]", "['a']"]


def test_threads_that_end_take_their_workers_with_them(matmul):
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("needs /proc")
    workers = [w for _ in range(3) for w in in_thread(lambda: run(matmul) or list(threads._pools.mine.workers))]
    deadline = time.monotonic() + 60  # a worker looks for work a while longer before it ends
    while {str(w) for w in workers} & {t.name for t in tasks.iterdir()}:
        assert time.monotonic() < deadline, "workers outlive the thread they worked for"
        time.sleep(0.05)
