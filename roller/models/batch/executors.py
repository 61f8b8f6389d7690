"""Workers of a batch: processes of this machine, an executor, or the workers of a Dask scheduler.

All of them take tasks by id and return results by id, with failures as records.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from roller.errors import RollerError, RollerWarning, counted, shown
from roller.models.batch.worker_tasks import CheckAndTimeTask, WorkerTask, preload_task_modules, run_task
from roller.runtime.build_pool import BuildResult, build_all
from roller.runtime.candidate_records import Record
from roller.targets import target_of_language
from roller_runtime.core.processor_features_and_count import usable_processors
from roller_runtime.core.validation import validate_integer

#: Timeouts, in seconds, for a build and for checking and timing all candidates of one kernel.
_BUILD_S, _JUDGE_S = 120.0, 300.0
#: Timeout for connecting to a scheduler, in seconds.
_CONNECT_S = 10.0
#: Time, in seconds, without any worker after which the batch continues here (a supervisor restarts workers sooner), and
#: time between polls.
_ALONE_S, _LOOK_S = 60.0, 2.0

Results = dict[str, BuildResult[Any]]
OnResult = Callable[[str], None]


if TYPE_CHECKING:
    from roller.runtime.check_and_time_candidates import ProfilerSession


class Workers(Protocol):
    """Protocol of objects that run tasks.

    Parameters
    ----------
    workers
        Number of tasks that run at a time.
    benches
        Number of kernels checked and timed at a time on other machines. 0 if this machine checks and times them; it
        must then be otherwise idle.
    """

    workers: int
    benches: int

    def prepare(self, language: str) -> None:
        """Load the code generator of a language before the first build."""

    def map(self, tasks: Mapping[str, WorkerTask], on_result: OnResult | None = None, patient: bool = False) -> Results:
        """Run all tasks; return a result for each id. ``patient`` disables timeouts."""

    def judge(self, task: CheckAndTimeTask) -> dict[str, Record]:
        """Check and time one kernel's candidates; return a record per candidate id."""

    def close(self) -> None:
        """Release the workers that this object started."""


class ForkedWorkers:
    """Forked processes of this machine, by default as many as the processors this process may use."""

    benches = 0

    def __init__(self, workers: int | None = None) -> None:
        self.workers = usable_processors() if workers is None else workers
        self._devices: dict[str, ProfilerSession] = {}

    def prepare(self, language: str) -> None:
        """Import TVM, the code generator and the checker before forking, so that the children inherit them."""
        preload_task_modules()
        target_of_language(language, "batch").prepare()

    def map(self, tasks: Mapping[str, WorkerTask], on_result: OnResult | None = None, patient: bool = False) -> Results:
        """Run all tasks; each task that runs kernels gets its own process."""
        return self._run_in_processes(tasks, on_result, patient, None)

    def check(self, tasks: Mapping[str, CheckAndTimeTask], on_result: OnResult | None = None) -> Results:
        """Check untimed kernels one after another in a few processes, without a timeout."""
        # Forking a process that holds TVM takes as long as such a check, so processes are reused. A kernel may corrupt
        # its process: after any failure all kernels are checked again, each in a process of its own.
        details = None if on_result is None else lambda record: on_result(record.candidate_id)
        found = build_all(tasks, run_task, workers=self.workers, timeout_s=float("inf"), on_result=details, reuse=True)
        right = all(r.value is not None and all(x.ok for x in r.value.values()) for r in found.values())
        return found if right else self.map(tasks, patient=True)

    def run_tasks_while_preparing(self, tasks: Mapping[str, WorkerTask], language: str) -> Results:
        """Run tasks that need no code generator while :meth:`prepare` runs, without a timeout; ignore its failure."""

        def prepare_ignoring_errors() -> None:
            with contextlib.suppress(RollerError, ImportError):
                self.prepare(language)

        return self._run_in_processes(tasks, None, True, prepare_ignoring_errors)

    def _run_in_processes(
        self,
        tasks: Mapping[str, WorkerTask],
        on_result: OnResult | None,
        patient: bool,
        meanwhile: Callable[[], None] | None,
    ) -> Results:
        timeout_s = float("inf") if patient else _BUILD_S
        details = None if on_result is None else lambda record: on_result(record.candidate_id)
        reuse = not any(t.runs_kernels for t in tasks.values())
        return build_all(
            tasks,
            run_task,
            workers=self.workers,
            timeout_s=timeout_s,
            on_result=details,
            reuse=reuse,
            meanwhile=meanwhile,
        )

    def judge(self, task: CheckAndTimeTask) -> dict[str, Record]:
        """Check and time candidates in a separate process, so that a crash ends neither the batch nor other kernels."""
        if task.device:  # the device's own process isolates the kernels and is replaced after faults
            return task.run(self._open_device_session(task.device, task.seed))
        timeout_s = _JUDGE_S if task.timed else float("inf")
        result = build_all({"all": task}, run_task, workers=1, timeout_s=timeout_s)["all"]
        return isolate_crashing_candidates(
            task, result, lambda one: build_all({"one": one}, run_task, workers=1)["one"]
        )

    def _open_device_session(self, name: str, seed: int) -> ProfilerSession:
        """Return the session of a device, opened once per batch."""
        from roller.backends.parse_device_names import parse_device_name
        from roller.runtime.check_and_time_candidates import ProfileOptions, ProfilerSession

        if name not in self._devices:
            self._devices[name] = ProfilerSession(parse_device_name(name), ProfileOptions(seed=seed))
        return self._devices[name]

    def close(self) -> None:
        """Close the opened devices."""
        while self._devices:
            self._devices.popitem()[1].close()


def isolate_crashing_candidates(
    task: CheckAndTimeTask, result: BuildResult[Any], again: Callable[[CheckAndTimeTask], BuildResult[Any]]
) -> dict[str, Record]:
    """Return the records in ``result``; after a crash, check each candidate alone and time the survivors again."""
    if result.value is not None:
        return dict(result.value)
    alone: dict[str, BuildResult[Any]] = {}
    if len(task.artifacts) > 1 and result.record.status != "failed":
        alone = {i: again(_restrict_to_candidates(task, [i], timed=False)) for i in task.artifacts}
    lost = {i: Record(i, result.record.status, result.record.reason) for i in task.artifacts}
    records = {i: Record(i, alone[i].record.status, alone[i].record.reason) if i in alone else lost[i] for i in lost}
    records |= {i: r.value[i] for i, r in alone.items() if r.value is not None}
    living = [i for i, r in records.items() if r.ok]
    if living and task.timed:
        timed = again(_restrict_to_candidates(task, living, timed=True))
        records |= dict(timed.value) if timed.value is not None else {i: lost[i] for i in living}
    return records


def _restrict_to_candidates(task: CheckAndTimeTask, ids: list[str], timed: bool) -> CheckAndTimeTask:
    return replace(task, artifacts={i: task.artifacts[i] for i in ids}, timed=timed)


@dataclass
class ExecutorWorkers:
    """Workers backed by any :class:`concurrent.futures.Executor`.

    Parameters
    ----------
    executor
        Executor that builds; its processes need roller and, for CPU kernels, TVM.
    workers
        Number of tasks that it runs at a time, as far as known.
    bench, benches
        Executor that checks and times kernels, and its number of tasks at a time; without it, this machine does.
    owned
        Resources closed at the end, in reverse order.
    staffed
        Function that returns whether a worker is left that builds (argument ``False``) or that checks and times
        (``True``); ``None`` if the executor itself raises an error when its workers are gone.
    """

    executor: concurrent.futures.Executor
    workers: int = 8
    bench: concurrent.futures.Executor | None = None
    benches: int = 0
    owned: tuple[AbstractContextManager[Any], ...] = field(default=())
    staffed: Callable[[bool], bool] | None = None
    _here: ForkedWorkers = field(default_factory=lambda: ForkedWorkers(1))
    _alone: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, language: str) -> None:
        """Do nothing: each worker imports its modules with its first task."""

    def map(self, tasks: Mapping[str, WorkerTask], on_result: OnResult | None = None, patient: bool = False) -> Results:
        """Submit all tasks and collect results by id; an interrupt cancels tasks that have not begun."""
        del patient  # executors have no timeouts
        futures = {_submit(self.executor, task): name for name, task in tasks.items()}
        results: Results = {}
        try:
            for future in self._done(futures, judging=False):
                name = futures[future]
                results[name] = _future_result(name, future)
                if on_result is not None:
                    on_result(name)
        finally:
            for future in futures:
                future.cancel()
        rest = {name: task for name, task in tasks.items() if name not in results}
        if rest:
            _warn_workers_gone(counted(len(rest), "task"))
            results |= self._here.map(rest, on_result, patient=True)
        return {name: results[name] for name in tasks}

    def judge(self, task: CheckAndTimeTask) -> dict[str, Record]:
        """Check and time on the bench, or on this machine if there is no bench or its workers are gone."""
        bench = self.bench
        if bench is None:
            return self._here.judge(task)

        def judge_on_bench(one: CheckAndTimeTask) -> BuildResult[Any]:
            future = _submit(bench, one)
            for done in self._done([future], judging=True):
                return _future_result("all", done)
            future.cancel()
            raise _NoWorkersError

        try:
            return isolate_crashing_candidates(task, judge_on_bench(task), judge_on_bench)
        except _NoWorkersError:
            _warn_workers_gone("kernels to judge")
            self.bench = None
            with self._alone:  # timings must not overlap
                return self._here.judge(task)

    def _done(
        self, futures: Iterable[concurrent.futures.Future[Any]], judging: bool
    ) -> Iterator[concurrent.futures.Future[Any]]:
        """Yield futures as they complete; stop early when no worker is left to run them."""
        # A scheduler keeps a dead worker's tasks for its successor; without a supervisor none comes.
        left, since = set(futures), time.monotonic()
        while left:
            timeout_s = None if self.staffed is None else _LOOK_S
            done, left = concurrent.futures.wait(left, timeout_s, concurrent.futures.FIRST_COMPLETED)
            yield from done
            if done or self.staffed is None or self.staffed(judging):
                since = time.monotonic()
            elif time.monotonic() - since >= _ALONE_S:
                return

    def close(self) -> None:
        """Close the resources that this batch opened."""
        self._here.close()
        for resource in reversed(self.owned):
            resource.__exit__(None, None, None)


class _NoWorkersError(Exception):
    """No worker is left to run a task."""


def _warn_workers_gone(what: str) -> None:
    text = f"scheduler: its workers died and were not replaced; the remaining {what} run on this machine."
    warnings.warn(text, RollerWarning, stacklevel=3)


def _submit(executor: concurrent.futures.Executor, task: WorkerTask) -> concurrent.futures.Future[Any]:
    from roller.runtime.cache_key import source_code_digest

    try:
        return executor.submit(run_task, task, source_code_digest())
    except (RuntimeError, concurrent.futures.BrokenExecutor) as err:  # shut down, or its processes died
        failed: concurrent.futures.Future[Any] = concurrent.futures.Future()
        failed.set_exception(err)
        return failed


def _future_result(name: str, future: concurrent.futures.Future[Any]) -> BuildResult[Any]:
    """Return the result of a future; the death of its worker becomes a record."""
    try:
        return BuildResult(Record(name, "built"), future.result())
    except concurrent.futures.CancelledError:
        return BuildResult(Record(name, "crashed", "the executor was shut down before this task was done"))
    except Exception as err:  # noqa: BLE001 - any error becomes the task's failure record
        died = isinstance(err, concurrent.futures.BrokenExecutor) or type(err).__name__ == "KilledWorker"
        return BuildResult(Record(name, "crashed" if died else "failed", f"{type(err).__name__}: {err}"))


def choose_batch_workers(
    executor: concurrent.futures.Executor | None, scheduler: Any, workers: int | None, resource: str = "cpu_slot"
) -> Workers:
    """Return the workers that the arguments select; ``resource`` marks the Dask workers that check and time kernels."""
    if workers is not None:
        workers = validate_integer(workers, "workers", 1, expected="a whole number of at least 1")
    if executor is not None and scheduler is not None:
        raise RollerError("scheduler: expected none beside executor=, got both. Remove one of them.")
    if scheduler is not None:
        return _dask_workers(scheduler, resource)
    if executor is not None:
        if not hasattr(executor, "submit"):
            raise RollerError(
                f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}. "
                "Pass for example ProcessPoolExecutor(4), or scheduler='tcp://...' for Dask."
            )
        known = workers or getattr(executor, "_max_workers", None)
        return ExecutorWorkers(executor, known if isinstance(known, int) else ExecutorWorkers.workers)
    return ForkedWorkers(workers)


def _dask_workers(scheduler: Any, resource: str) -> ExecutorWorkers:
    """Return a Dask scheduler's workers: all of them build, and those with the resource also check and time."""
    named = isinstance(scheduler, str) and re.fullmatch(r"(\w+://)?\S+:\d+/?|inproc://\S+", scheduler)
    if not named and type(scheduler).__module__.partition(".")[0] != "distributed":
        raise RollerError(
            "scheduler: expected an address with a port ('tcp://host:8786') or a distributed.Client, "
            f"got {shown(scheduler)}."
        )
    try:
        import distributed
    except ImportError as err:
        raise RollerError(
            "scheduler: expected the package distributed, found none. Install it: pip install roller[distributed]."
        ) from err
    owned: tuple[AbstractContextManager[Any], ...] = ()
    if isinstance(scheduler, distributed.Client):
        client: Any = scheduler
    else:
        try:
            client = cast("Any", distributed.Client)(scheduler, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as err:
            raise RollerError(
                f"scheduler: expected a Dask scheduler at '{scheduler}', got none ({err}). Start one: dask scheduler."
            ) from err
        owned = (client,)
    found = client.run_on_scheduler(_dask_threads_and_resources)
    if not found:
        for opened in owned:
            opened.__exit__(None, None, None)
        raise RollerError(f"scheduler: expected workers at '{scheduler}', found none. Start one: dask worker ADDRESS.")
    benches = int(sum(resources.get(resource, 0) for _, resources in found))
    bench = client.get_executor(pure=False, resources={resource: 1}) if benches else None

    def staffed(judging: bool) -> bool:
        try:
            there = client.run_on_scheduler(_dask_threads_and_resources)
        except Exception:  # noqa: BLE001 - any failure to answer means that no workers are left
            return False
        return any(not judging or resources.get(resource, 0) for _, resources in there)

    threads = sum(threads for threads, _ in found)
    return ExecutorWorkers(client.get_executor(pure=False), threads, bench, benches, owned, staffed)


def _dask_threads_and_resources(dask_scheduler: Any) -> list[tuple[int, dict[str, float]]]:
    """Return each worker's number of threads and its resources; this runs in the scheduler."""
    return [(w.nthreads, dict(w.resources)) for w in dask_scheduler.workers.values()]
