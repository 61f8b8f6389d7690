"""What a run consists of: each phase knows what is left of it, and does as much as it is given time for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import ncu
from benchmarks.gpu.child import converse
from benchmarks.gpu.comparison import PEER, run_tasks, tasks_of
from benchmarks.gpu.journal import RunJournal
from benchmarks.gpu.kernels import Kernels, Wanted
from benchmarks.gpu.plan import MODELS, OPERATORS, PROBES, VARIANTS, Pack, chosen
from benchmarks.gpu.ranking import winners, worst
from benchmarks.gpu.schedule import Clock, Phase, Unit
from roller.backends.parse_device_names import DeviceHandle
from roller.models.session.check_and_time_bundle import PHASES, describe_phase
from roller.models.session.gpu_bundle import ModelBundle
from roller.runtime.probe_bundle import ProbeBundle, run_unknown_cases
from roller.runtime.probe_run import PlanRunner

Say = Callable[[str], None]
#: Seconds of timing per kernel, and per peer.
_KERNEL_S, _PEER_S = 0.03, 0.1
#: Candidates of every operator that are run before the others of any.
_FIRST_RANKS = 3
#: Seconds a phase of a model may take, runs per median, and operators that are profiled, each for at most so long.
_MODEL_S, _SAMPLES, PROFILED, _PROFILE_S = 60.0, 50, 5, 90.0
#: Seconds of a phase that must be left for a process of it to be begun.
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
    clock
        Tells seconds.
    """

    pack: Pack
    handle: DeviceHandle
    journal: RunJournal
    say: Say
    seed: int = 0
    timeout_s: float = 20.0
    pattern: str = "*"
    clock: Clock = time.monotonic

    @property
    def pretended(self) -> bool:
        """Whether the device is none."""
        return self.handle.kind == "null"

    def folder(self, part: str) -> Path:
        """Return the folder of a part."""
        return self.pack.part(part) or self.pack.folder / part

    def chosen(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that are run."""
        return chosen(ids, self.pattern)

    def remark(self, phase: str, text: str) -> None:
        """Keep and tell what people should know of how a phase ran."""
        self.journal.write(phase, remark=text)
        self.say(f"{phase}: {text}")


class Probes:
    """Micro-benchmarks: rates of the arithmetic, bandwidths by kind of traffic, latencies, overheads."""

    name = PROBES

    def __init__(self, job: Job) -> None:
        self._job, self._bundle = job, ProbeBundle(job.folder(PROBES))
        self._known = job.journal.data.cases

    def left(self) -> int:
        """Return how many cases have no result."""
        return sum(1 for _ in self.waiting())

    expected = left

    def waiting(self) -> Iterator[Unit]:
        """Yield the cases that have no result."""
        for name in self._bundle.names:
            known = self._known.get(name, {})
            yield from (Unit("case", (name, c.key)) for c in self._bundle.plan(name).cases if c.key not in known)

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep a result of a case that nobody ran."""
        result = {"status": "timeout" if reason else "measured", "reason": reason}
        self._job.journal.keep_case(self.name, *unit.key, result)

    def run(self, deadline: float) -> None:
        """Run what is left."""
        limit_s = min(self._job.timeout_s, max(1.0, deadline - self._job.clock()))
        runner, bundle = PlanRunner(self._job.handle, limit_s), self._bundle
        try:
            bundle.check(runner.properties(), self._job.handle)
            keep, late = partial(self._job.journal.keep_case, self.name), lambda: self._job.clock() > deadline
            run_unknown_cases(bundle, bundle.names, runner, self._known, keep, self._job.say, late)
        finally:
            runner.close()


class Peers:
    """The best kernel of every operator in turn with cuBLAS, cuDNN and PyTorch's own, then Triton, then inductor.

    Parameters
    ----------
    job
        What all phases share.
    name
        Of the phase.
    ids
        Operators in the order they are compared.
    kinds
        Peers, see :func:`~benchmarks.gpu.comparison.tasks_of`.
    """

    def __init__(self, job: Job, name: str, ids: Sequence[str], kinds: Sequence[str]) -> None:
        self.name, self._job, self._kinds = name, job, kinds
        held = {e.id: e for e in job.pack.kernels(OPERATORS).operators}
        rows = {p.id: p for p in job.pack.operators}
        self._entries = [held[i] for i in job.chosen(ids) if i in held]
        self._rows = [rows[e.id] for e in self._entries]
        self._unavailable = ""

    def left(self) -> int:
        """Return how many comparisons are left of those whose operator has a kernel that is right."""
        return 0 if self._unavailable else len(self._tasks())

    def expected(self) -> int:
        """Return how many are left where every operator that was not run yet turns out right."""
        if self._unavailable:
            return 0
        records = self._job.journal.data.records.get(OPERATORS, {})
        open_ones = {e.id: e.candidates[0] for e in self._entries if e.id not in records}
        return len(self._tasks(open_ones))

    def _tasks(self, also: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        data = self._job.journal.data
        tasks = tasks_of(self._rows, {**winners(data.records.get(OPERATORS, {})), **(also or {})})
        return [t for t in tasks if t["kind"] in self._kinds and t["key"] not in data.peers]

    def waiting(self) -> Iterator[Unit]:
        """Yield the comparisons that are left."""
        names = {"functional": "torch"}
        yield from (Unit(names.get(t["kind"], t["kind"]), (t["key"],)) for t in self._tasks())

    def run(self, deadline: float) -> None:
        """Run what is left."""
        job = self._job
        work = {"bundle": str(job.folder(OPERATORS).resolve()), "card": job.pack.device, "device": job.handle.text,
                "seed": job.seed, "time_s": _PEER_S}  # fmt: skip
        self._unavailable = run_tasks(self._tasks(), work, job.journal, deadline, job.say, phase=self.name)
        if self._unavailable:
            job.journal.write(self.name, skipped=self._unavailable)
            job.say(f"{self.name}: {self._unavailable}")

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep a comparison that nobody made."""
        (key,) = unit.key
        status = "crashed" if reason else "measured"
        peer = {"name": PEER[key.rpartition("/")[2]], "status": status, "reason": reason, "note": "",
                "median_s": 1e-3, "ratio": 1.0}  # fmt: skip
        self._job.journal.write(self.name, key=key, peers=[peer])


class Models:
    """Whole models: right, and how long they and their steps take; each in a process of its own."""

    name = MODELS
    worker = Path(__file__).with_name("model_worker.py")

    def __init__(self, job: Job) -> None:
        self._job = job
        self._bundles = {n: ModelBundle(job.folder(f"{MODELS}/{n}")) for n in chosen(job.pack.models, job.pattern)}

    def left(self) -> int:
        """Return how many phases of models are left."""
        return sum(len(self._waiting(n)) for n in self._bundles)

    expected = left

    def waiting(self) -> Iterator[Unit]:
        """Yield the phases of models that are left."""
        yield from (Unit("model", (n, p)) for n in self._bundles for p in self._waiting(n))

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep a phase of a model that nobody ran."""
        name, phase = unit.key
        row = {"phase": phase, "ok": not reason, "reason": reason, "median_s": None, "steps": [], "outputs": []}
        self._job.journal.write(self.name, model=name, row={**row, "tests": 0})

    def _waiting(self, name: str) -> list[str]:
        known = self._known(name)
        right = known.get("check", {"ok": True})["ok"]
        return [p for p in PHASES if p not in known] if right else []

    def _known(self, name: str) -> Mapping[str, Any]:
        return self._job.journal.data.models.get(name, {})

    def run(self, deadline: float) -> None:
        """Run what is left."""
        for name, bundle in self._bundles.items():
            while self._waiting(name) and self._job.clock() < deadline - _LEAST_S:
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
        told = f"{row['phase']}: {row['reason']}" if row.get("reason") else describe_phase(row)
        self._job.say(f"{name}: {told}")


class Profiles:
    """Nsight Compute on the operators that are furthest behind their peers, or else their predictions."""

    name = "ncu"

    def __init__(self, job: Job) -> None:
        self._job, self._bundle = job, job.pack.kernels(OPERATORS)
        self._unavailable = ""

    def left(self) -> int:
        """Return how many operators are left to be profiled."""
        return 0 if self._unavailable else len(self._waiting())

    def expected(self) -> int:
        """Return how many are left where every operator turns out right."""
        most = min(PROFILED, len(self._bundle.operators))
        return 0 if self._unavailable else max(0, most - len(self._job.journal.data.profiles))

    def waiting(self) -> Iterator[Unit]:
        """Yield the operators that are left to be profiled."""
        yield from (Unit("profile", pair) for pair in self._waiting())

    def pretend(self, unit: Unit, reason: str) -> None:
        """Keep a profile that nobody took."""
        operator, candidate = unit.key
        profile = {"candidate": candidate, "kernels": [], "reason": reason or "pretended"}
        self._job.journal.write(self.name, operator=operator, profile=profile)

    def _waiting(self) -> list[tuple[str, str]]:
        data = self._job.journal.data
        ranked = worst(self._bundle.operators, data.records.get(OPERATORS, {}), data.peers)
        return [r for r in ranked if r[0] not in data.profiles][: max(0, PROFILED - len(data.profiles))]

    def run(self, deadline: float) -> None:
        """Profile what is left."""
        program = "null" if self._job.pretended else ncu.find()
        if program is None:
            return self._skip("expected ncu on PATH or below /usr/local/cuda*, found none")
        while self.left() and self._job.clock() < deadline - _LEAST_S:
            operator, candidate = self._waiting()[0]
            text = self._answer(program, operator, candidate, min(_PROFILE_S, deadline - self._job.clock()))
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
        command = ncu.command(program, self._bundle, operator, candidate, entries)
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
    """Return the phases that a pack has parts for, in the order of its table of phases."""
    first = job.pack.schedule.headline
    held = [e.id for e in job.pack.kernels(OPERATORS).operators] if OPERATORS in job.pack.parts else []
    others = [i for i in held if i not in set(first)]
    timed = partial(Wanted, part=OPERATORS, records=OPERATORS, kind="kernel", time_s=_KERNEL_S)
    checked = Wanted("correctness", VARIANTS, VARIANTS, "check", tool="memcheck", rounds=(1, None))
    raced = Wanted("races", VARIANTS, "races", "race", tool="racecheck", most=1)
    made: dict[str, tuple[str, Callable[[], Phase]]] = {
        "correctness": (VARIANTS, lambda: Kernels(job, checked)),
        "headline": (OPERATORS, lambda: Kernels(job, timed("headline", ids=first))),
        "headline-peers": (OPERATORS, lambda: Peers(job, "headline-peers", first, ("functional", "triton"))),
        "probes": (PROBES, lambda: Probes(job)),
        "operators": (OPERATORS, lambda: Kernels(job, timed("operators", ids=others, rounds=(_FIRST_RANKS, None)))),
        "peers": (OPERATORS, lambda: Peers(job, "peers", [*others, *first], tuple(PEER))),
        "models": (MODELS, lambda: Models(job)),
        "ncu": (OPERATORS, lambda: Profiles(job)),
        "races": (VARIANTS, lambda: Kernels(job, raced)),
    }
    there = {p.partition("/")[0] for p in job.pack.parts}
    named = [made[row.name] for row in job.pack.schedule.phases]
    return [make() for part, make in named if part in there]
