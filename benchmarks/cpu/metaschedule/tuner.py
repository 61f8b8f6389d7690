"""MetaSchedule on one operator after the other, in a process of its own: ``... tuner SETTINGS``.

What TVM 0.27 needs to tune for a CPU at all: the default builder imports every tensor intrinsic in each worker (37 s)
and gives up after 30, so workers get a build function that does without; schedules come from the rules of plain
``llvm``, because those of AVX-512 only add int8 intrinsics.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.metaschedule import journal
from benchmarks.cpu.metaschedule.subjects import Task

#: Trials built and measured together; the cost model learns after each (TVM's default is 64, of which 200 trials would
#: leave it three lessons).
TRIALS_PER_ITERATION = 32
#: A trial that failed is in the database with this many seconds or more.
_FAILED_S = 1e9
#: Seconds one build and one measurement may take: TVM's defaults.
_BUILD_LIMIT_S, _RUN_LIMIT_S = 30.0, 30.0
#: Most calls of one measurement, and about how long they take.
_CALLS, _MEASURE_S = 1000, 0.2
SEED = 20220711


def build(module: Any, target: Any, _params: Any) -> Any:
    """Build a candidate as TVM's default does, without importing intrinsics no candidate uses."""
    import tvm
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    return tvm.tirx.build(RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module), target=target)


def run(module: Any, device: Any, _config: Any, arguments: Any) -> list[float]:
    """Return the seconds of the fastest of many single calls.

    TVM's default is the mean of calls for 100 ms. Where other programs run too, threads that wait for each other make
    that a measurement of the scheduler (ticks of 4 ms), and the cost model would learn it.
    """
    device.sync()

    def fastest(calls: int) -> float:
        return float(
            min(module.time_evaluator(module.entry_name, device, number=1, repeat=calls)(*arguments[0]).results)
        )

    once = fastest(3)
    return [min(once, fastest(max(5, min(_CALLS, round(_MEASURE_S / max(once, 1e-9))))))]


def module_of(task: Task) -> Any:
    """Return the unscheduled program of a task."""
    import tvm

    from roller.te.compat import te
    from roller.te.reader import to_te

    func = te.create_prim_func(to_te(task.expression()))
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def target_of(task: Task) -> Any:
    """Return the target of a task: the processor Roller compiles for."""
    import tvm

    return tvm.target.Target({"kind": "llvm", "mcpu": task.mcpu, "num-cores": task.threads})


@dataclass(frozen=True)
class Found:
    """A scheduled program of a database and the seconds the tuner measured."""

    module: Any
    seconds: float


def best_of(task: Task, root: Path, count: int) -> list[Found]:
    """Return the best programs of a task's database by the tuner's own measurements, failures left out."""
    from tvm.s_tir import Schedule, meta_schedule
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    database = meta_schedule.database.JSONDatabase(work_dir=str(task.folder(root)), allow_missing=False)
    module = module_of(task)
    if not database.has_workload(module):
        return []
    found = []
    for record in database.get_top_k(database.commit_workload(module), count):
        schedule = Schedule(module)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
        scheduled = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(schedule.mod)
        found.append(Found(scheduled, _seconds(record.run_secs)))
    return [f for f in found if f.seconds < _FAILED_S]


def _seconds(run_secs: Any) -> float:
    values = sorted(float(s) for s in run_secs or ())
    return values[len(values) // 2] if values else float("inf")


def tune(task: Task, root: Path, trials: int, import_s: float) -> None:
    """Measure the trials that the journal lacks; a space may be exhausted before."""
    from tvm.s_tir import meta_schedule as ms

    folder = task.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(task.settings(), indent=1) + "\n")
    model = ms.cost_model.CostModel.create(task.cost_model, num_tuning_cores=task.threads)
    if task.cost_model == "xgb":
        _teach(model, task, folder)
    done = -1
    while done < (found := journal.totals(journal.read(folder)).trials) < trials:
        done = found  # a batch may come out smaller than asked for, so the rest is asked for again
        _tune(task, folder, trials - done, model, import_s)


def _tune(task: Task, folder: Path, trials: int, model: Any, import_s: float) -> None:
    from tvm.s_tir import meta_schedule as ms

    rules = list(ms.ScheduleRule.create("llvm"))
    space = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs="from-target", mutator_probs="from-target")
    ms.tune_tir(
        mod=module_of(task), target=target_of(task), work_dir=str(folder), max_trials_global=trials,
        num_trials_per_iter=TRIALS_PER_ITERATION, num_tuning_cores=task.threads, space=space, cost_model=model,
        builder=ms.builder.LocalBuilder(max_workers=task.threads, timeout_sec=_BUILD_LIMIT_S, f_build=build),
        runner=ms.runner.LocalRunner(timeout_sec=_RUN_LIMIT_S, f_run_evaluator=run),
        measure_callbacks=[*ms.MeasureCallback.create("default"), _recorder(folder, import_s)],
        seed=SEED + trials,  # a run that goes on must not repeat what it measured
    )  # fmt: skip


def _teach(model: Any, task: Task, folder: Path) -> None:
    """Train a cost model on what an earlier run measured."""
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.JSONDatabase(work_dir=str(folder))
    records = database.get_all_tuning_records()
    if records:
        context = ms.TuneContext(mod=module_of(task), target=target_of(task), num_threads=task.threads)
        results = [ms.runner.RunnerResult(r.run_secs, None) for r in records]
        model.update(context, [r.as_measure_candidate() for r in records], results)


def processor_s() -> float:
    """Return the processor seconds of this process and of every process under it, ended or alive."""
    import psutil

    mine = os.times()
    used = mine.user + mine.system + mine.children_user + mine.children_system
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            t = child.cpu_times()
            used += t.user + t.system + t.children_user + t.children_system
    return used


def _recorder(folder: Path, import_s: float) -> Any:
    """Return a callback of MetaSchedule that writes the journal."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Recorder(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.since, self.used = time.perf_counter(), processor_s()

        def apply(self, _scheduler: Any, _task: int, candidates: Any, _built: Any, results: Any) -> None:
            now, used = time.perf_counter(), processor_s()
            measured = [_seconds(r.run_secs) for r in results]
            good = [s for s in measured if s < _FAILED_S]
            line = journal.Batch(len(candidates), len(measured) - len(good), now - self.since, used - self.used,
                                 min(good, default=None), import_s, round(os.getloadavg()[0], 2))  # fmt: skip
            journal.add(folder, line)
            self.since, self.used = now, used

    return Recorder()


def main(arguments: Iterator[str]) -> None:
    """Tune what the JSON says: ``{"root", "trials", "tasks"}``."""
    order = json.loads(next(arguments))
    start = time.perf_counter()
    import tvm.s_tir.tensor_intrin  # noqa: F401 - what takes so long that it must not count as tuning

    import_s = time.perf_counter() - start
    for fields in order["tasks"]:
        tune(Task(**fields), Path(order["root"]), order["trials"], import_s)


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
