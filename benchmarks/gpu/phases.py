"""What a run consists of: each phase knows what is left of it, and does as much as it is given time for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu import ncu
from benchmarks.gpu.child import converse
from benchmarks.gpu.comparison import PHASE as PEERS
from benchmarks.gpu.comparison import run_tasks, tasks_of
from benchmarks.gpu.journal import HourJournal
from benchmarks.gpu.plan import MODELS, OPERATORS, PROBES, VARIANTS, Pack, chosen
from benchmarks.gpu.ranking import winners, worst
from roller.model.bundle_run import line_of, phases_of
from roller.model.gpu_bundle import ModelBundle
from roller.runtime.bundle_format import Bundle
from roller.runtime.bundle_run import OperatorRun, opened
from roller.runtime.devices import DeviceHandle
from roller.runtime.probe_bundle import ProbeBundle, check_device, run_plans
from roller.runtime.probe_run import PlanRunner
from roller.runtime.profiler import ProfileOptions, ProfilerSession

Say = Callable[[str], None]
NCU = "ncu"
#: Seconds of timing per kernel: of variants, which are there to be right, of operators, and of peers.
_TIME_S = {VARIANTS: 0.01, OPERATORS: 0.03, PEERS: 0.1}
#: Candidates of every operator that are run before the others of any.
_FIRST_RANKS = 3
#: Stage points up to which every output of a variant is compared.
_EVERY_OUTPUT_POINTS = 1 << 24
#: Seconds a phase of a model may take, runs per median, and operators that are profiled, each for at most so long.
_MODEL_S, _SAMPLES, PROFILED, _PROFILE_S = 60.0, 50, 5, 90.0
#: Seconds of the run that must be left for a phase to be begun.
_LEAST_S = 2.0


@dataclass(frozen=True)
class Job:
    """What all phases share.

    Parameters
    ----------
    pack, handle, journal, say
        The pack, the device, where results go, and who is told.
    seed
        Of all data.
    timeout_s
        Seconds one kernel may take before its process is replaced.
    pattern
        Ids or patterns of what is run.
    """

    pack: Pack
    handle: DeviceHandle
    journal: HourJournal
    say: Say
    seed: int = 0
    timeout_s: float = 20.0
    pattern: str = "*"

    @property
    def pretended(self) -> bool:
        """Whether the device is none."""
        return self.handle.kind == "null"

    def folder(self, part: str) -> Path:
        """Return the folder of a part."""
        return self.pack.folder / part


class Phase(Protocol):
    """A part of the run."""

    name: str
    share: float

    def left(self) -> int:
        """Return how much is still to be done."""

    def run(self, deadline: float) -> None:
        """Do what is left until ``time.monotonic()`` is ``deadline``."""


class Kernels:
    """Checks and times the kernels of one bundle, the first ranks of every operator before the others.

    Parameters
    ----------
    job
        What all phases share.
    name, share
        Of the phase: the part of the pack; its share of the run's time.
    rounds
        Ranks run in each round; ``None`` for all.
    """

    def __init__(self, job: Job, name: str, share: float, rounds: Sequence[int | None] = (None,)) -> None:
        self.name, self.share, self._job, self._rounds = name, share, job, rounds
        self._bundle = Bundle(job.folder(name))
        wanted = set(chosen([e.id for e in self._bundle.operators], job.pattern))
        self._entries = [e for e in self._bundle.operators if e.id in wanted]
        self._records = job.journal.data.records.setdefault(name, {})

    def left(self) -> int:
        """Return how many candidates have no record."""
        return sum(len(set(e.candidates) - set(self._records.get(e.id, ()))) for e in self._entries)

    def run(self, deadline: float) -> None:
        """Run what is left."""
        whole = _EVERY_OUTPUT_POINTS if self.name == VARIANTS else None
        options = ProfileOptions(
            seed=self._job.seed, timeout_s=self._job.timeout_s, time_s=_TIME_S[self.name], whole_points=whole
        )
        session, keep = ProfilerSession(self._job.handle, options), partial(self._job.journal.keep_record, self.name)
        try:
            opened(session, self._bundle)
            for ranks in self._rounds:
                left = replace(options, budget_s=max(0.0, deadline - time.monotonic()))
                OperatorRun(self._bundle, self._entries, self._records, keep, left, self._job.say, ranks).on([session])
        finally:
            session.close()


class Probes:
    """Micro-benchmarks: rates of the arithmetic, bandwidths by kind of traffic, latencies, overheads."""

    name, share = PROBES, 0.12

    def __init__(self, job: Job) -> None:
        self._job, self._bundle = job, ProbeBundle(job.folder(PROBES))
        self._known = job.journal.data.cases

    def left(self) -> int:
        """Return how many cases have no result."""
        names, known = self._bundle.names, self._known
        return sum(c.key not in known.get(n, {}) for n in names for c in self._bundle.plan(n).cases)

    def run(self, deadline: float) -> None:
        """Run what is left."""
        runner, bundle = PlanRunner(self._job.handle, self._job.timeout_s), self._bundle
        try:
            units = int(bundle.manifest["units"])
            check_device(runner.properties(), self._job.handle, bundle.device, bundle.arch, units)
            keep, late = partial(self._job.journal.keep_case, self.name), lambda: time.monotonic() > deadline
            run_plans(bundle, bundle.names, runner, self._known, keep, self._job.say, late)
        finally:
            runner.close()


class Peers:
    """Our best kernel of every operator in turn with cuBLAS, cuDNN and PyTorch's own, then Triton, then inductor."""

    name, share = PEERS, 0.22

    def __init__(self, job: Job) -> None:
        self._job, self._bundle = job, Bundle(job.folder(OPERATORS))
        self._unavailable = ""

    def left(self) -> int:
        """Return how many comparisons are left of those whose operator has a kernel that is right."""
        return 0 if self._unavailable else len(self._tasks())

    def _tasks(self) -> list[dict[str, Any]]:
        data = self._job.journal.data
        tasks = tasks_of(self._job.pack.operators, winners(data.records.get(OPERATORS, {})))
        return [t for t in tasks if t["key"] not in data.peers]

    def run(self, deadline: float) -> None:
        """Run what is left."""
        job = self._job
        work = {"bundle": str(job.folder(OPERATORS).resolve()), "device": job.handle.text, "seed": job.seed,
                "time_s": _TIME_S[PEERS]}  # fmt: skip
        self._unavailable = run_tasks(self._tasks(), work, job.journal, deadline, job.say)
        if self._unavailable:
            job.journal.write(self.name, skipped=self._unavailable)
            job.say(f"{self.name}: {self._unavailable}")


class Models:
    """Whole models: right, and how long they and their steps take; each in a process of its own."""

    name, share = MODELS, 0.08
    worker = Path(__file__).with_name("model_worker.py")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._bundles = {n: ModelBundle(job.folder(f"{MODELS}/{n}")) for n in chosen(job.pack.models, job.pattern)}

    def left(self) -> int:
        """Return how many phases of models are left."""
        return sum(len(self._waiting(n)) for n in self._bundles)

    def _waiting(self, name: str) -> list[str]:
        known = self._known(name)
        right = known.get("check", {"ok": True})["ok"]
        return [p for p in phases_of(self._bundles[name]) if p not in known] if right else []

    def _known(self, name: str) -> Mapping[str, Any]:
        return self._job.journal.data.models.get(name, {})

    def run(self, deadline: float) -> None:
        """Run what is left."""
        for name, bundle in self._bundles.items():
            while self._waiting(name) and time.monotonic() < deadline - _LEAST_S:
                work = {"bundle": str(bundle.folder.resolve()), "device": self._job.handle.text,
                        "samples": 1 if self._job.pretended else _SAMPLES,
                        "known": dict(self._known(name))}  # fmt: skip
                refused: list[str] = []

                def take(message: Mapping[str, Any], name: str = name, refused: list[str] = refused) -> float:
                    if message["event"] == "row":
                        self._keep(name, message["row"])
                    else:
                        refused.append(message["reason"])
                    return _MODEL_S

                ending = converse([sys.executable, str(self.worker)], work, deadline, take)
                waiting = self._waiting(name)
                if ending.late:
                    return
                if waiting and (refused or not ending.orderly):
                    reason = refused[0].splitlines()[0] if refused else ending.reason.splitlines()[-1]
                    # What took the process down is a row; the next process goes on behind it.
                    self._keep(name, {"phase": waiting[0], "ok": waiting[0] != "check", "reason": reason,
                                      "median_s": None, "steps": [], "outputs": [], "tests": 0})  # fmt: skip

    def _keep(self, name: str, row: dict[str, Any]) -> None:
        self._job.journal.write(self.name, model=name, row=row)
        told = f"{row['phase']}: {row['reason']}" if row.get("reason") else line_of(row)
        self._job.say(f"{name}: {told}")


class Profiles:
    """Nsight Compute on the operators that are furthest behind their peers, or else their predictions."""

    name, share = NCU, 0.08

    def __init__(self, job: Job) -> None:
        self._job, self._bundle = job, Bundle(job.folder(OPERATORS))
        self._unavailable = ""

    def left(self) -> int:
        """Return how many operators are left to be profiled."""
        return 0 if self._unavailable else len(self._waiting())

    def _waiting(self) -> list[tuple[str, str]]:
        data = self._job.journal.data
        ranked = worst(self._bundle.operators, data.records.get(OPERATORS, {}), data.peers)
        return [r for r in ranked if r[0] not in data.profiles][: max(0, PROFILED - len(data.profiles))]

    def run(self, deadline: float) -> None:
        """Profile what is left."""
        program = "null" if self._job.pretended else ncu.find()
        if program is None:
            return self._skip("expected ncu on PATH or below /usr/local/cuda*, found none")
        while self.left() and time.monotonic() < deadline - _LEAST_S:
            operator, candidate = self._waiting()[0]
            text = self._answer(program, operator, candidate, min(_PROFILE_S, deadline - time.monotonic()))
            kernels = ncu.parsed(text)
            reason, final = ("", False) if kernels else ncu.refusal(text)
            if final:
                return self._skip(reason)
            profile = {"candidate": candidate, "kernels": kernels, "reason": reason}
            self._job.journal.write(self.name, operator=operator, profile=profile)
            self._save(ncu.table_of(text))
            self._job.say(f"{operator}: {reason or f'{len(kernels)} kernels profiled'}")
        return None

    def _answer(self, program: str, operator: str, candidate: str, limit_s: float) -> str:
        entry = next(e for e in self._bundle.operators if e.id == operator)
        artifact = dict(self._bundle.load(entry))[candidate]
        entries = [x.entry for x in artifact.launches]
        if self._job.pretended:
            return ncu.pretended(artifact.estimate, entries)
        command = ncu.command(program, self._bundle.folder.resolve(), operator, candidate, entries)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            return f"==ERROR== no answer within {limit_s:.0f} s"
        except OSError as err:
            return f"==ERROR== {program}: {err.strerror}"
        return done.stdout + done.stderr

    def _save(self, table: str) -> None:
        """Keep the whole table beside the journal, for people."""
        with (self._job.journal.folder / "ncu.csv").open("a", encoding="utf-8") as file:
            file.write(table)

    def _skip(self, reason: str) -> None:
        self._unavailable = reason
        self._job.journal.write(self.name, skipped=reason)
        self._job.say(f"{self.name}: {reason}")


def phases(job: Job) -> list[Phase]:
    """Return the phases that a pack has parts for, in the order of what matters most."""
    made: list[tuple[str, Callable[[], Phase]]] = [
        (VARIANTS, lambda: Kernels(job, VARIANTS, 0.15)),
        (PROBES, lambda: Probes(job)),
        (OPERATORS, lambda: Kernels(job, OPERATORS, 0.35, (_FIRST_RANKS, None))),
        (OPERATORS, lambda: Peers(job)),
        (MODELS, lambda: Models(job)),
        (OPERATORS, lambda: Profiles(job)),
    ]
    there = {p.partition("/")[0] for p in job.pack.parts}
    return [make() for part, make in made if part in there]
