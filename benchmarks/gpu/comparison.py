"""Our best kernels against peers, in a process that is replaced after a fault."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import converse
from benchmarks.gpu.journal import RunJournal
from benchmarks.gpu.plan import Planned

#: Seconds a task of each kind may take before its process is replaced, and what must be left for it to be begun.
LIMIT_S = {"functional": 30.0, "triton": 60.0, "compile": 120.0}
_LEAST_S = {"functional": 2.0, "triton": 15.0, "compile": 30.0}
#: What a kind is compared with.
PEER = {"functional": "torch", "triton": "triton", "compile": "torch.compile"}
#: Processes that end before any task is done, after which there are no peers.
_MOST_STARTS = 2
_WORKER = Path(__file__).with_name("worker.py")


def tasks_of(planned: Sequence[Planned], winners: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what is to be compared: every operator with PyTorch, then with Triton, then a subset ``torch.compile``.

    Parameters
    ----------
    planned
        The plan.
    winners
        Fastest correct candidate by operator.
    """
    kinds: tuple[tuple[str, Callable[[Planned], bool]], ...] = (
        ("functional", lambda p: True), ("triton", lambda p: triton_has(p.row)), ("compile", lambda p: p.compiled)
    )  # fmt: skip
    return [
        {"key": f"{p.id}/{kind}", "id": p.id, "kind": kind, "row": dict(p.row), "candidate": winners[p.id],
         "least_s": _LEAST_S[kind]}
        for kind, wanted in kinds for p in planned if p.id in winners and wanted(p)
    ]  # fmt: skip


def triton_has(row: Mapping[str, Any]) -> bool:
    """Whether the Triton peer covers a row: plain row-major products of floating numbers."""
    plain = not (row.get("batch") or row.get("transpose_a") or row.get("transpose_b"))
    return row["op"] == "matmul" and plain and row["dtype"] != "int8"


def run_tasks(
    tasks: Sequence[Mapping[str, Any]], work: Mapping[str, Any], journal: RunJournal, deadline: float,
    say: Callable[[str], None], command: Sequence[str] = (sys.executable, str(_WORKER)), phase: str = "peers",
) -> str:  # fmt: skip
    """Work through the tasks that the journal does not know yet.

    Parameters
    ----------
    tasks
        See :func:`tasks_of`.
    work
        What the worker is told beside the tasks: ``bundle``, ``card``, ``device``, ``seed``, ``time_s``.
    journal
        Where records go.
    deadline
        ``time.monotonic()`` at which the process is ended.
    say
        Receives one line per task.
    command
        The worker; another one in tests.
    phase
        That the records are of.

    Returns
    -------
    str
        Why there are no peers, where there are none; else empty.
    """
    fruitless = 0
    while True:
        left = [dict(t) for t in tasks if t["key"] not in journal.data.peers]
        if not left or time.monotonic() > deadline - min(t["least_s"] for t in left):
            return ""
        talk = _Talk(journal, say, phase)
        told = {**work, "tasks": left, "budget_s": deadline - time.monotonic()}
        ending = converse(command, told, deadline, talk.take)
        if talk.unavailable or ending.late:
            return talk.unavailable
        fruitless = 0 if talk.done else fruitless + 1
        if talk.begun is not None:
            # The task that took the process down is a record; the next process goes on behind it.
            name = PEER[talk.begun.rpartition("/")[2]]
            record = {"name": name, "status": "crashed", "reason": ending.reason, "note": ""}
            journal.write(phase, key=talk.begun, peers=[record])
            say(f"{talk.begun}: {ending.reason.splitlines()[-1] if ending.reason else 'its process died'}")
        elif ending.orderly:
            return ""
        elif fruitless >= _MOST_STARTS:
            return ending.reason


class _Talk:
    """What one worker said."""

    def __init__(self, journal: RunJournal, say: Callable[[str], None], phase: str) -> None:
        self._journal, self._say, self._phase = journal, say, phase
        self.begun: str | None = None
        self.done = 0
        self.unavailable = ""

    def take(self, message: Mapping[str, Any]) -> float:
        """Take one message; return the seconds the next one may take."""
        event = message["event"]
        if event == "unavailable":
            self.unavailable = message["reason"]
        elif event == "ready":
            self._journal.write(self._phase, versions=message["versions"])
        elif event == "begin":
            self.begun = message["key"]
        else:
            self._journal.write(self._phase, key=message["key"], peers=message["peers"])
            self.begun, self.done = None, self.done + 1
            self._say(f"{message['key']}: {_told(message['peers'])}")
        return LIMIT_S[(self.begun or "/functional").rpartition("/")[2]]


def _told(peers: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        f"{p['name']} {p['median_s'] * 1e3:.4g} ms, ratio {p['ratio']:.3f}" if p["status"] == "measured"
        else f"{p['name']} {p['status']}: {p['reason'][:120]}"
        for p in peers
    ]  # fmt: skip
    return "; ".join(parts)
