"""Worker threads of CPU kernels: their number and their processors.

TVM keeps one pool per calling thread. Its workers are kept off the caller's processor, because a scheduler that packs
threads wakes a worker on the caller's processor, which both would then share for tens of milliseconds. The caller is
never bound.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from roller_runtime.core.processor_features_and_count import affinity_processors, processors_granted_by_cgroup
from roller_runtime.errors import LaunchError, RollerWarning

#: ``int task(int task_id, TVMParallelGroupEnv* env, void* data)``, the callback of TVM's parallel launch.
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
#: ``tvm::runtime::threading::ResetThreadPool()``: ends the workers of the calling thread's pool and starts new ones.
_RESET = "_ZN3tvm7runtime9threading15ResetThreadPoolEv"
#: ``tvm::runtime::threading::SetMaxConcurrency(int)``: with 1, the calling thread's kernels run without a pool; with 0,
#: its pool has the default number of threads.
_LIMIT = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
#: TVM's variable for how often an idle worker polls before it sleeps, and the fewest polls that outlast a fork.
_SPINS, _SPINS_THROUGH_FORK = "TVM_THREAD_POOL_SPIN_COUNT", 100_000
#: More threads than any pool has; TVM then uses all.
_ALL = 1 << 16
_pools = threading.local()


def set_tvm_thread_defaults() -> None:
    """Make TVM's pools use every processor without pinning threads, unless the user has set TVM's variables."""
    # TVM reads these variables at every parallel launch. Without the first it uses half the processors; without the
    # second it pins the caller too, and pins the workers of several pools to one core.
    os.environ.setdefault("TVM_NUM_THREADS", str(len(processors())))
    os.environ.setdefault("TVM_BIND_THREADS", "0")


@functools.cache
def processors() -> tuple[int, ...]:
    """Return the processors available to this process at the first call; binding a thread later changes nothing."""
    # OpenMP binds the calling thread if OMP_PROC_BIND is set.
    return affinity_processors()


def count_simultaneous_threads() -> int:
    """Return how many threads of this process can run simultaneously."""
    return processors_granted_by_cgroup(len(processors()))


def assign_worker_processors(
    workers: int, caller: int, processors: Sequence[int], core_of: Callable[[int], str]
) -> list[set[int]]:
    """Return the processors that each worker may use: one each, on separate cores first, not the caller's if possible.

    Examples
    --------
    >>> assign_worker_processors(2, 0, [0, 1, 2, 3], lambda cpu: str(cpu // 2))
    [{2}, {1}]
    >>> assign_worker_processors(1, 0, [0], str)
    [{0}]
    """
    taken, first, siblings = {core_of(caller)}, list[int](), list[int]()
    for p in processors:
        if p != caller:
            (siblings if core_of(p) in taken else first).append(p)
            taken.add(core_of(p))
    free = [*first, *siblings]
    if len(free) < workers:  # more threads than processors; the scheduler distributes them
        return [set(free) or set(processors)] * workers
    return [{p} for p in free[:workers]]


#: Folder in which Linux lists the processors.
_PROCESSORS = Path("/sys/devices/system/cpu")


@functools.cache
def core_id_of_processor(processor: int) -> str:
    """Return an identifier of a processor's core: the core's hardware threads, or ``processor`` if they are unknown."""
    try:
        return (_PROCESSORS / f"cpu{processor}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(processor)


class WorkerPool:
    """TVM's worker pool that belongs to the thread that creates this object.

    Parameters
    ----------
    configure
        ``runtime.config_threadpool``; ``None`` if the runtime lacks it.
    """

    def __init__(self, library: ctypes.CDLL, configure: Any) -> None:
        self.cores = 0
        self._library, self._configure = library, configure
        self._where = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None
        self._bound = os.environ.get("TVM_BIND_THREADS", "0") != "0"
        self.workers: list[int] = []
        self.caller = -1
        #: Whether TVM has a pool for this thread, and whether that pool's threads are gone.
        self._made = self._lost = False
        #: Workers that were woken before the last fork; ``None`` if that is unknown.
        self._woken: list[int] | None = None

    def use(self, cores: int) -> None:
        """From now on, run the calling thread's kernels on ``cores`` threads, including the calling thread."""
        alone = self._limit_threads(1 if self._lost else cores)
        if self._lost and (cores > 1 or not alone):
            _report_lost_workers(alone)
        self.cores, self.caller, self.workers = cores, -1, []
        if alone:
            return
        if self._configure is not None:
            self._configure(1, cores)
        self._made = True
        if self._where is not None and not self._bound and cores > 1:
            self.workers = self._found()

    def part(self) -> None:
        """Move workers off the caller's current processor; this takes 0.1 us if the caller has not moved."""
        if self.workers and self._where is not None:
            caller = self._where()
            if caller != self.caller:
                self._move(caller)

    def wake(self) -> None:
        """Wake all workers before a fork."""
        # A process forked while a worker sleeps could not destroy the pool: the condition variable on which the worker
        # sleeps waits for it forever. A worker that was woken polls for 0.1 s or more before it sleeps.
        self._woken = None
        if self._lost or not self._made or self._configure is None or getattr(_pools, "no_workers", False):
            return
        self._limit_threads(0)
        self._configure(1, _ALL)
        self.cores, self._woken = 0, self._found()

    def replace_after_fork(self) -> None:
        """Replace the pool in a forked process, where its threads are missing; mark it as lost if it must stay."""
        self.cores, self.workers = 0, []
        if self._lost or not self._made:
            return
        # Workers exist in the parent: one that polls now did so when this process was forked, unless workers sleep so
        # soon that it slept then and was woken since.
        spins = os.environ.get(_SPINS, str(_SPINS_THROUGH_FORK)).strip()
        polls = spins.isdecimal() and int(spins) >= _SPINS_THROUGH_FORK
        reset, woken = getattr(self._library, _RESET, None), self._woken
        if reset is not None and polls and woken is not None and all(map(_is_parents_thread_awake, woken)):
            reset()  # at once: TVM joins the missing threads, whose memory the next threads of this process take
        else:
            self._lost = True

    def _limit_threads(self, cores: int) -> bool:
        """Let the calling thread's kernels run without a pool if ``cores`` is 1; return whether they do."""
        limit = getattr(self._library, _LIMIT, None)
        if limit is None:
            return False
        limit(1 if cores == 1 else 0)
        return cores == 1

    def _move(self, caller: int) -> None:
        self.caller = caller
        for worker, where in zip(
            self.workers,
            assign_worker_processors(len(self.workers), caller, processors(), core_id_of_processor),
            strict=True,
        ):
            try:
                os.sched_setaffinity(worker, where)
            except OSError:  # a processor is offline, or a sandbox forbids it; placement is only an optimization
                self.workers = []
                return

    def _found(self) -> list[int]:
        """Return the thread ids of the workers, as they report them."""
        ids: set[int] = set()

        def report(_task: int, _env: Any, _data: Any) -> int:
            ids.add(threading.get_native_id())
            return 0

        self._library.TVMBackendParallelLaunch(_TASK(report), None, 0)
        return sorted(ids - {threading.get_native_id()})


def _is_parents_thread_awake(thread: int) -> bool:
    """Return whether a thread of the parent process does not wait for another one; ``False`` if Linux does not tell."""
    try:
        state = Path(f"/proc/{os.getppid()}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "RD"  # D: it waits for a page, as during a fork
    except (OSError, IndexError):
        return not sys.platform.startswith("linux")


def _report_lost_workers(are_kernels_on_one_thread: bool) -> None:
    what = "CPU launcher: this process was forked by a thread that had run kernels, and its workers cannot be replaced"
    remedy = "Start such processes with multiprocessing's 'spawn' or 'forkserver'."
    if not are_kernels_on_one_thread:
        raise LaunchError(f"{what}. {remedy}")
    one = "Kernels of its first thread run on that thread alone, and it must end by os._exit."
    warnings.warn(RollerWarning(f"{what}. {one} {remedy}"), stacklevel=5)


@contextlib.contextmanager
def forking_without_workers() -> Iterator[None]:
    """Wake and replace no workers for processes forked in this block: their first thread must run no kernel."""
    # TVM destroys the pool where such a process does not end by os._exit; those of multiprocessing do.
    _pools.no_workers = True
    try:
        yield
    finally:
        _pools.no_workers = False


def prepare_pool_for_kernel(cores: int, library: Callable[[], tuple[ctypes.CDLL, Any]]) -> None:
    """Prepare the calling thread's pool for a kernel on ``cores`` threads; this takes 0.2 us if nothing changed."""
    mine: WorkerPool | None = getattr(_pools, "mine", None)
    if mine is None:
        mine = _pools.mine = WorkerPool(*library())
    if mine.cores != cores:
        mine.use(cores)
    mine.part()


def kernel_thread_ids() -> tuple[int, ...] | None:
    """Return the ids of the threads that run the calling thread's kernels; ``None`` if they are unknown."""
    mine: WorkerPool | None = getattr(_pools, "mine", None)
    if mine is None or (mine.cores > 1 and not mine.workers):
        return None
    return (threading.get_native_id(), *mine.workers)


def _make_fork_hook(act: Callable[[WorkerPool], None]) -> Callable[[], None]:
    def hook() -> None:
        mine: WorkerPool | None = getattr(_pools, "mine", None)
        if mine is not None:
            act(mine)

    return hook


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_make_fork_hook(WorkerPool.wake), after_in_child=_make_fork_hook(WorkerPool.replace_after_fork)
    )
