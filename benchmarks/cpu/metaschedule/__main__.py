"""``python -m benchmarks.cpu.metaschedule``: tune, compile, race, write JSON and Markdown."""

from __future__ import annotations

import datetime
import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import HERE, screen, table, write_json
from benchmarks.cpu import environment
from benchmarks.cpu.cases import Case, suite
from benchmarks.cpu.metaschedule import journal, report
from benchmarks.cpu.metaschedule.duel import Record, duel
from benchmarks.cpu.metaschedule.subjects import Task, kind_of, representatives
from benchmarks.cpu.race import Pace

#: What tuning needs besides TVM.
_NEEDED = ("psutil", "cloudpickle")
#: A tuning process that dies (TVM does, where a candidate corrupts memory) is started again so often.
_STARTS = 3


def chosen(pattern: str) -> list[Case]:
    """Return the representatives whose id or kind matches one of the comma-separated patterns."""
    cases, patterns = representatives(suite()), [p.strip() for p in pattern.split(",")]
    found = [c for c in cases if any(fnmatch.fnmatchcase(n, p) for n in (c.id, kind_of(c)) for p in patterns)]
    if not found:
        raise typer.BadParameter(f"--filter: expected some of {[c.id for c in cases]}, nothing matches '{pattern}'.")
    return found


def cost_model() -> str:
    """Return MetaSchedule's own cost model where XGBoost is installed, else the one that guesses."""
    return "xgb" if importlib.util.find_spec("xgboost") else "random"


def lacking(tasks: list[Task], root: Path, trials: int) -> list[Task]:
    """Return the tasks that have fewer trials in their journal."""
    return [t for t in tasks if journal.totals(journal.read(t.folder(root))).trials < trials]


def tune(tasks: list[Task], root: Path, trials: int) -> str:
    """Tune in a process of its own, started again where it dies; return why it gave up, or nothing.

    TVM binds its threads there as it does by default. It loads the tensor intrinsics once for all operators.
    """
    environ = {k: v for k, v in os.environ.items() if k != "TVM_BIND_THREADS"}
    for _ in range(_STARTS):
        left = lacking(tasks, root, trials)
        if not left:
            return ""
        order = json.dumps({"root": str(root.resolve()), "trials": trials, "tasks": [asdict(t) for t in left]})
        command = [sys.executable, "-m", "benchmarks.cpu.metaschedule.tuner", order]
        with (root / "tuner.log").open("a") as log:
            done = subprocess.run(command, env=environ, cwd=HERE.parent, stdout=log, stderr=log, check=False)
        if done.returncode == 0:  # a small space may be exhausted before the last trial
            return ""
    return f"the tuner died {_STARTS} times; see {root / 'tuner.log'}"


def tasks_for(cases: list[Case], threads: int) -> list[Task]:
    """Return what is tuned, for the processor Roller compiles for."""
    from roller.hardware import load_spec

    mcpu, tvm = str(load_spec("cpu").target["mcpu"]), metadata.version("apache-tvm")
    return [Task(c.id, threads, cost_model(), mcpu, tvm) for c in cases]


def line(record: Record) -> str:
    """Return a record on one line."""
    if not record.ratio:
        return f"{record.id} NOT RACED: {record.reason}"
    r = record.ratio
    return (
        f"{record.id} {r['median']:.3f} [{r['low']:.3f}, {r['high']:.3f}] of {record.best}; "
        f"{record.tuning['seconds']:.0f} s against {record.top_k_s:.2f} s"
    )


def main(
    pattern: Annotated[str, typer.Option("--filter", help="Ids or kinds: 'M4,conv*'.")] = "*",
    trials: Annotated[int, typer.Option(min=1, help="Candidates MetaSchedule measures per operator.")] = 200,
    threads: Annotated[int, typer.Option(min=0, help="Threads of both; 0: all cores.")] = 0,
    rounds: Annotated[int, typer.Option(min=3, help="Turns per contender.")] = Pace().rounds,
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 10,
    race_only: Annotated[bool, typer.Option(help="Race what was tuned before, tune nothing.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of metaschedule.json and .md.")] = HERE / "results",
    work: Annotated[Path, typer.Option(help="Folder of databases and journals.")] = HERE.parent / "build/metaschedule",
) -> None:
    """Compare Roller with TVM MetaSchedule on one operator of each kind."""
    from benchmarks.cpu.__main__ import default_threads

    missing = [n for n in _NEEDED if importlib.util.find_spec(n) is None]
    if missing and not race_only:
        raise typer.BadParameter(f"expected the packages {list(_NEEDED)}, {missing} are missing. "
                                 "pip install 'roller[metaschedule]'")  # fmt: skip
    threads = threads or default_threads()
    environment.restart_with(threads, "benchmarks.cpu.metaschedule")
    tasks = tasks_for(chosen(pattern), threads)
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    problem = "" if race_only else tune(tasks, work, trials)
    if problem:
        screen().print(problem)
    _finish(tasks, work, out, trials, rounds, top_k)


def _finish(tasks: list[Task], work: Path, out: Path, trials: int, rounds: int, top_k: int) -> None:
    """Race, write the files and print the limits."""
    import roller

    roller.compile(roller.ops.matmul(16, 16, 16), device="cpu", top_k=2, cache=False)  # imports are no compilation
    records = []
    for task in tasks:
        records.append(duel(task, work, Pace(rounds=rounds), top_k))
        screen().print(line(records[-1]))
    head = {
        **environment.facts(tasks[0].threads), "xgboost": _version("xgboost"), "cost model": tasks[0].cost_model,
        "target": f"llvm -mcpu={tasks[0].mcpu} -num-cores={tasks[0].threads}", "trials": trials,
        "top_k": top_k, "rounds": rounds, "date": datetime.date.today().isoformat(),
    }  # fmt: skip
    write_json(out / "metaschedule.json", report.to_json(records, head))
    (out / "metaschedule.md").write_text(report.to_markdown(records, head))
    rows = [(v.name, v.limit, v.value, v.word) for v in report.verdicts(records, trials)]
    screen().print(table("", ("limit", "must be", "is", ""), rows))
    screen().print(f"{out / 'metaschedule'}.md, .json")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    typer.run(main)
