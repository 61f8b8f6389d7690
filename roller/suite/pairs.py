"""Alternating training of a model in two processes, for estimating the ratio of their iteration times."""

# The speed of a shared machine drifts, and processes with the same code differ by the placement of memory and threads.
# The ratio of neighbouring blocks therefore has far less noise than two separate times.

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from roller.errors import RollerError
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.progress import Cancelled
from roller.suite.entry import SuiteModel
from roller.suite.mean_interval import LEAST_ROUNDS, MeanInterval, mean_interval, paired_ratio
from roller.suite.measuring import Measurement, SuiteProcess, measurement_from_reply
from roller.suite.sampling import Sample, SamplingRule
from roller.suite.turn_coordinator import Block, TurnCoordinator

#: Number of warm-up rounds, and relative half-width of the ratio's interval at which sampling stops.
WARM_UP, TARGET_HALF_WIDTH = 4, 0.005
#: Polling interval for processes to exit, in seconds.
_POLL_S = 0.05
#: Length of a block, and of the pause before it in which spinning threads come to rest, in seconds.
BLOCK_S, PAUSE_S = 0.2, 0.02


@dataclass(frozen=True)
class Pair:
    """Alternating measurements of one model in pairs of processes.

    Parameters
    ----------
    before, after
        Measurements of the first pair of processes.
    rounds_s
        For each pair of processes, the times per iteration in both, in seconds, from undisturbed rounds.
    disturbed
        Number of rounds discarded because other programs used the processors.
    environments
        Versions and settings of both processes.
    """

    before: Measurement
    after: Measurement
    rounds_s: tuple[tuple[tuple[float, float], ...], ...]
    disturbed: int
    environments: tuple[Mapping[str, Any], ...] = ()

    @property
    def ratio(self) -> MeanInterval | None:
        """Ratio of iteration times, after to before, with its 95 % confidence interval; ``None`` for few rounds."""
        return paired_ratio(self.rounds_s)

    def rows(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a run file's row for each process; :func:`~roller.suite.difference.difference` pairs them again."""
        name = uuid4().hex
        both = []
        for n, one in enumerate((self.before, self.after)):
            rounds = [[times[n] for times in own] for own in self.rounds_s]
            both.append({**one.to_dict(), "pair": {"id": name, "rounds_s": rounds, "disturbed": self.disturbed}})
        return both[0], both[1]


def run_alternating_rounds(
    run: Sequence[Callable[[int], Block]], *, budget_s: float
) -> tuple[list[tuple[float, float]], int]:
    """Run rounds of one block per process within a budget; return quiet rounds and the number of disturbed ones."""
    end_s, rounds, disturbed, calls = monotonic() + budget_s, list[tuple[float, float]](), 0, 1
    number = 0
    while monotonic() < end_s or number < WARM_UP + LEAST_ROUNDS:
        found: list[Block] = [Block(0.0, False)] * 2
        for side in (0, 1) if number % 2 == 0 else (1, 0):  # the second finds warmer caches: they alternate
            sleep(PAUSE_S)
            found[side] = run[side](calls)
        number += 1
        calls = max(1, round(BLOCK_S / max(block.iteration_s for block in found)))
        if number <= WARM_UP:
            continue
        if all(block.is_quiet for block in found):
            rounds.append((found[0].iteration_s, found[1].iteration_s))
        else:
            disturbed += 1
        if (
            len(rounds) >= LEAST_ROUNDS
            and mean_interval([after / before for before, after in rounds]).half_width <= TARGET_HALF_WIDTH
        ):
            break
    return rounds, disturbed


def measure_pair(
    model: SuiteModel,
    *,
    reduced: bool = True,
    batch: int | None = None,
    budget_s: float = 60.0,
    seed: int = 0,
    pythons: tuple[str, str] = (sys.executable, sys.executable),
) -> Pair:
    """Train a model alternately in two processes on this machine's processor.

    Parameters
    ----------
    model, reduced, batch, seed
        See :func:`~roller.suite.measuring.measure_model`.
    budget_s
        Time in seconds, including the start of both processes but not the three final steps, in which operators are
        timed. At least ``WARM_UP + LEAST_ROUNDS`` rounds run, including disturbed ones.
    pythons
        Python interpreters with PyTorch, one for each process; both processes run this release of roller.

    Raises
    ------
    ModelError
        If PyTorch is missing, or a process exited.
    """
    workload = model.workload(reduced=reduced)
    options = TraceOptions(workload.batch if batch is None else batch, None, None, False)
    start_s = monotonic()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="roller-turns-")))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        tasks, coordinators = list[Future[Any]](), list[TurnCoordinator]()
        processes = list[SuiteProcess]()
        for n, python in enumerate(pythons):
            folder = root / str(n)
            folder.mkdir()
            processes.append(SuiteProcess(model.name, reduced=reduced, seed=seed, python=python, turns=folder))
            coordinators.append(TurnCoordinator(folder, partial(_is_process_running, tasks, n)))
            stack.callback(coordinators[-1].close)
            tasks.append(pool.submit(processes[-1].measure, options, float(budget_s)))
        try:
            rounds, disturbed = _run_rounds_and_finish(tasks, coordinators, lambda: budget_s - (monotonic() - start_s))
        except BaseException:  # includes interruptions: do not wait for the processes to finish
            while wait(tasks, _POLL_S).not_done:  # also kills a process that is still starting
                for process in processes:
                    process.kill()
            raise
        replies = [task.result() for task in tasks]
    both = []
    for n, (trace, reply) in enumerate(replies):
        sample = sample_from_rounds([times[n] for times in rounds], disturbed).to_dict()
        both.append(measurement_from_reply(model, reduced, options.batch or 1, trace, {**reply, "sample": sample}))
    return Pair(both[0], both[1], (tuple(rounds),), disturbed, tuple(reply["environment"] for _, reply in replies))


def sample_from_rounds(iteration_s: Sequence[float], disturbed: int) -> Sample:
    """Return the rounds of one process as a sample, subject to the precision limit of single measurements."""
    found = mean_interval(iteration_s) if len(iteration_s) > 1 else None
    limit, note = SamplingRule().limit, ""
    if found is None or len(iteration_s) < LEAST_ROUNDS or found.half_width > limit:
        width = "no interval" if found is None else f"{100 * found.half_width:.1f} %"
        note = (
            f"pairs: expected {LEAST_ROUNDS} undisturbed rounds and a mean known to {100 * limit:g} %, got "
            f"{len(iteration_s)} and {width}. Raise the budget."
        )
    return Sample(WARM_UP, tuple(iteration_s), disturbed, found, None, note)


def _is_process_running(tasks: Sequence[Future[Any]], n: int) -> bool:
    return n >= len(tasks) or not tasks[n].done()


def _run_rounds_and_finish(
    tasks: Sequence[Future[Any]], coordinators: Sequence[TurnCoordinator], left_s: Callable[[], float]
) -> tuple[list[tuple[float, float]], int]:
    try:
        for coordinator in coordinators:
            coordinator.wait()
        found = run_alternating_rounds([coordinator.run for coordinator in coordinators], budget_s=left_s())
    except RollerError:
        for task in tasks:
            if task.done():
                task.result()  # raises the cause of the process's end
        raise
    for coordinator, task in zip(coordinators, tasks, strict=True):
        coordinator.end()
        task.exception()  # sequentially, so that final measurements do not disturb each other
    return found


def measure_pairs(
    models: Sequence[SuiteModel],
    *,
    python: str | None = None,
    budget_s: float = 900.0,
    repeat: int = 1,
    seed: int = 0,
    failed: Callable[[str, RollerError], None],
    done: Callable[[str], None] = lambda name: None,
) -> Iterator[Pair]:
    """Yield a pair of measurements of each model within one time budget.

    Parameters
    ----------
    models, seed, failed, done
        See :func:`~roller.suite.measuring.measure`.
    python
        Python interpreter of the second process; by default, that of the first process.
    budget_s
        Time for all models, in seconds; each model, including its start-up, has an equal share of the remaining time.
    repeat
        Number of process pairs per model.
    """
    end_s = monotonic() + budget_s
    pythons = (sys.executable, python or sys.executable)
    for left, model in zip(range(len(models), 0, -1), models, strict=True):
        share_s = max(1.0, (end_s - monotonic()) / left / repeat)
        try:
            runs = [measure_pair(model, budget_s=share_s, seed=seed, pythons=pythons) for _ in range(repeat)]
        except Cancelled:
            raise
        except RollerError as error:
            failed(model.name, error)
            continue
        rounds = tuple(group for run in runs for group in run.rounds_s)
        yield replace(runs[0], rounds_s=rounds, disturbed=sum(run.disturbed for run in runs))
        done(model.name)
