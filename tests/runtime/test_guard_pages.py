"""Memory between protected pages: what a kernel reads or writes beside its arrays is seen, and named."""

import ctypes
import faulthandler
import mmap
import multiprocessing
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller.te.emit_tvm_expressions
import roller.templates.cpu.rows.emit
from roller.errors import BuildError
from roller.runtime import check_and_time_cpu_kernels, guard_pages
from roller.runtime.guard_pages import (
    AVAILABLE,
    allocate_between_guard_pages,
    find_out_of_bounds_access,
    kernels_with_bad_accesses,
)
from roller.runtime.guarded_workspaces import load_guard
from roller.te.compat import te, tirx
from roller.te.reader import read
from roller_runtime.timing.clock import ClockSample, Load, SystemClock
from tests.codegen.cpu_programs import kernel, program
from tests.runtime.fake_clock import FakeClock

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="needs Linux to protect pages")
N = 20_000


def touch(at_end, beyond):
    faulthandler.disable()  # the signal is the result
    array = allocate_between_guard_pages((5, 3), np.dtype("float32"), 4, at_end=at_end)
    first = array.ctypes.data - (4 if beyond and not at_end else 0)
    (np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * (15 + beyond)).from_address(first)) + 1).sum()


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_first_element_beside_an_array_is_a_fault(at_end, beyond):
    child = multiprocessing.get_context("fork").Process(target=touch, args=(at_end, beyond))
    child.start()
    child.join()
    assert child.exitcode == (-signal.SIGSEGV if beyond else 0)


@pytest.mark.parametrize("alignment_bytes", [1, 2, 64])
def test_an_array_ends_as_near_to_the_page_as_its_alignment_allows(alignment_bytes):
    array = allocate_between_guard_pages((3, 7), np.dtype("uint8"), alignment_bytes, at_end=True)
    gap = -(array.ctypes.data + array.nbytes) % mmap.PAGESIZE
    assert gap < alignment_bytes and array.ctypes.data % alignment_bytes == 0
    array[...] = 1
    assert array.sum() == 21


def resident_bytes():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(1024 * int(lines[k].split()[0]) for k in ("RssAnon", "RssShmem"))


def test_reading_an_array_takes_no_memory():
    array, before = allocate_between_guard_pages((1 << 24,), np.dtype("float32"), 4, at_end=True), resident_bytes()
    assert array[:: mmap.PAGESIZE // 4].sum() == 0
    assert resident_bytes() - before < array.nbytes / 8


def concatenated():
    """The smaller tensor is read where the larger one does not begin yet, or beyond its end."""
    z, s = te.placeholder((N,), name="Z"), te.placeholder((4,), name="S")
    return read([z, s, te.compute((N,), lambda i: tirx.if_then_else(i >= 4, z[i], s[i]), name="Y")])


def made():
    e = concatenated()
    return e, kernel(e, program(e, "streaming", {"i": 64}, {"i": 4096}, "i"))


@pytest.fixture
def eager(monkeypatch):
    """Emission that takes no branch for control flow: TVM then drops the guard that the condition implies."""
    monkeypatch.setattr(roller.te.emit_tvm_expressions, "_contains_conditional", lambda e: False)


def test_a_kernel_that_leaves_an_array_is_told_which(eager):
    reason = find_out_of_bounds_access(made()[1])
    assert reason == "it accesses memory beyond the end of 'S': beside a protected page its process ended by SIGSEGV"


def test_of_several_kernels_those_that_leave_their_arrays_are_told(eager):
    e = roller.ops.elementwise("exp", (64,))
    (axis,) = (a.name for a in e.stages[0].axes)
    inside, leaves = kernel(e, program(e, "streaming", {axis: 8}, {axis: 64}, axis)), made()[1]
    assert kernels_with_bad_accesses({"a": inside, "b": leaves, "c": inside}) == ["b"]
    assert kernels_with_bad_accesses({"a": inside, "c": inside}) == kernels_with_bad_accesses({}) == []


def rows_kept_in_a_workspace():
    x, k = te.placeholder((4, N), name="X"), te.reduce_axis((0, N), "k")
    y = te.compute((4, N), lambda i, j: te.exp(x[i, j]), name="Y")
    total = te.compute((4,), lambda i: te.sum(y[i, k], axis=k), name="T")
    e = read([x, te.compute((4, N), lambda i, j: (y[i, j] * total[i]).astype("int8"), name="Z")])
    return kernel(e, program(e, "rows", {"k": 16}, {"i": 1}))


def test_a_kernel_that_leaves_its_workspace_is_told_so(monkeypatch):
    assert kernels_with_bad_accesses({"inside": rows_kept_in_a_workspace()}) == []
    right = roller.templates.cpu.rows.emit.declare_buffer
    short = lambda name, shape, dtype: right(name, tuple(max(1, x - 1) for x in shape), dtype)  # noqa: E731
    monkeypatch.setattr(roller.templates.cpu.rows.emit, "declare_buffer", short)
    leaves = rows_kept_in_a_workspace()
    reason = "it accesses memory outside a workspace: beside a protected page its process ended by SIGABRT"
    assert find_out_of_bounds_access(leaves) == reason
    assert kernels_with_bad_accesses({"a": leaves, "b": made()[1]}) == ["a"]


def touch_workspace(nbytes, at_end, offset):
    faulthandler.disable()  # the signal is the result
    guard = load_guard()
    ctypes.c_int.in_dll(guard, "roller_workspaces_end_at_page").value = int(at_end)
    allocate, free = guard.roller_allocate_workspace, guard.roller_free_workspace
    allocate.restype, free.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    found = allocate(1, 0, ctypes.c_uint64(nbytes), 2, 32)
    assert found % 64 == 0
    ctypes.memset(found, 1, nbytes)
    ctypes.memset(found + offset, 1, 1)
    free(1, 0, found)


@pytest.mark.parametrize("nbytes, at_end, offset, ends", [
    (4096, True, 4095, 0), (100, False, 0, 0), (0, True, -1, signal.SIGSEGV), (4096, True, 4096, signal.SIGSEGV),
    (4096, True, -1, signal.SIGSEGV), (4096, False, -1, signal.SIGSEGV), (100, False, -1, signal.SIGSEGV),
    (100, False, 100, signal.SIGABRT), (100, False, 4096, signal.SIGSEGV), (100, True, -1, signal.SIGABRT),
    (100, True, 100, signal.SIGABRT), (100, True, 128, signal.SIGSEGV),
])  # fmt: skip
def test_a_write_beside_a_workspace_ends_the_process(nbytes, at_end, offset, ends):
    load_guard()
    child = multiprocessing.get_context("fork").Process(target=touch_workspace, args=(nbytes, at_end, offset))
    child.start()
    child.join()
    assert child.exitcode == -ends


def test_without_a_compiler_arguments_alone_are_checked(monkeypatch, eager, caplog):
    def refuse():
        raise BuildError("no C compiler")

    monkeypatch.setattr(guard_pages, "load_guard", refuse)
    guard_pages._guard_is_available.cache_clear()
    try:
        inside = rows_kept_in_a_workspace()
        assert inside.runtime_pointers
        assert kernels_with_bad_accesses({"a": inside, "b": made()[1]}) == ["b"]
    finally:
        guard_pages._guard_is_available.cache_clear()
    assert [r.getMessage() for r in caplog.records] == ["the workspaces of kernels are not checked: no C compiler"]


def test_a_candidate_that_leaves_an_array_is_a_record_and_its_results_are_not_asked(eager):
    e, found = made()
    (record,) = check_and_time_cpu_kernels.CpuBench(e).profile({"bad": found.artifact}, timed=False).values()
    assert record.status == "wrong" and "beyond the end of 'S'" in record.reason


def test_a_candidate_that_stays_inside_is_checked():
    e, found = made()
    (record,) = check_and_time_cpu_kernels.CpuBench(e).profile({"good": found.artifact}, timed=False).values()
    assert record.status == "checked"


#: A kernel that is nothing but its arguments: what its child does is planted.
NOTHING = SimpleNamespace(
    artifact=SimpleNamespace(arguments=[SimpleNamespace(name="X", shape=(4,), dtype="float32")]),
    runtime_pointers={"__TVMBackendAllocWorkspace": 0},
)


@pytest.fixture
def children(monkeypatch):
    """The children that were forked; none of them is left when a test ends."""
    found, fork = [], os.fork

    def noted():
        child = fork()
        if child:
            found.append(child)
        return child

    monkeypatch.setattr(os, "fork", noted)
    yield found
    left = [c for c in found if Path(f"/proc/{c}").exists()]
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found and not left


def test_an_interrupt_while_forking_ends_the_child(children, monkeypatch):
    """It is raised once the fork is over: before anybody waits for the child, which may run for ever."""
    fork = os.fork

    def interrupted():
        child = fork()
        if child:
            os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr(guard_pages, "_run_in_child_and_exit", lambda *_: signal.pause())
    monkeypatch.setattr(os, "fork", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            find_out_of_bounds_access(NOTHING)
    finally:
        signal.signal(signal.SIGINT, before)


def end_by(number):
    faulthandler.disable()
    os.kill(os.getpid(), number)
    os._exit(0)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, 0])
def test_only_a_fault_is_evidence(number, children, monkeypatch):
    monkeypatch.setattr(guard_pages, "_run_in_child_and_exit", lambda *_: end_by(number))
    assert (find_out_of_bounds_access(NOTHING) is None) == (number not in (signal.SIGSEGV, signal.SIGABRT))


def test_a_child_that_hangs_is_no_evidence(children, monkeypatch):
    monkeypatch.setattr(guard_pages, "_run_in_child_and_exit", lambda *_: signal.pause())
    monkeypatch.setattr(guard_pages, "_PATIENT_S", 0.0)
    assert find_out_of_bounds_access(NOTHING) is None


def test_expressions_without_guards_are_not_run_twice(monkeypatch):
    x = te.placeholder((64,), name="X")
    e = read([x, te.compute((64,), lambda i: x[i] * 2.0, name="Y")])
    monkeypatch.setattr(check_and_time_cpu_kernels, "find_out_of_bounds_access", lambda _: pytest.fail("ran"))
    found = kernel(e, program(e, "streaming", {"i": 64}, {"i": 64}, "i"))
    (record,) = check_and_time_cpu_kernels.CpuBench(e).profile({"good": found.artifact}, timed=False).values()
    assert record.status == "checked"


class Alone(FakeClock):
    """A machine on which nobody but this process and its children runs; each window takes a millisecond."""

    def end(self) -> ClockSample:
        self.at += 1e-3
        return super().end()

    def load(self) -> Load:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        busy_s = sum(u.ru_utime + u.ru_stime for u in used)
        return replace(SystemClock().load(), wall_s=self.at, busy_s=busy_s, stolen_s=0.0, throttled=0, known=True)


def test_kernels_with_guards_are_ranked_where_nobody_else_runs(monkeypatch):
    """The children that run between protected pages are no other program."""
    quick, runs = guard_pages.run_once_on_allocated_memory, []

    def slow(found, place):
        quick(found, place)
        while time.process_time() < 0.1:  # of the child alone
            pass

    def noted(found):
        runs.append(find_out_of_bounds_access(found))
        return runs[-1]

    monkeypatch.setattr(guard_pages, "run_once_on_allocated_memory", slow)
    monkeypatch.setattr(check_and_time_cpu_kernels, "find_out_of_bounds_access", noted)
    e, found = made()
    records = check_and_time_cpu_kernels.CpuBench(e, clock=Alone()).profile({"a": found.artifact, "b": found.artifact})
    assert runs == [None, None]
    assert [(r.status, r.tied) for r in records.values()] == [("measured", "")] * 2
