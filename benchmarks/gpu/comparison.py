"""The second half of a run: our best kernels against peers, in a process that is replaced after a fault."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.plan import Planned
from roller.errors import ArtifactError

#: Seconds a task of each kind may take before its process is replaced, and what must be left for it to be begun.
LIMIT_S = {"functional": 60.0, "compile": 150.0}
_LEAST_S = {"functional": 2.0, "compile": 30.0}
#: Seconds the libraries may take to be imported and a context to be opened.
_START_S = 120.0
_POLL_S = 0.2
#: Seconds a process that has closed its output may take to be gone.
_LEAVE_S = 5.0
_WORKER = Path(__file__).with_name("worker.py")


def tasks_of(planned: Sequence[Planned], winners: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what is to be compared: every operator with its peers, then the subset with ``torch.compile``.

    Parameters
    ----------
    planned
        The plan.
    winners
        Fastest correct candidate by operator.
    """
    kinds = (("functional", lambda p: True), ("compile", lambda p: p.compiled))
    return [
        {"key": f"{p.id}/{kind}", "id": p.id, "kind": kind, "row": dict(p.row), "candidate": winners[p.id],
         "least_s": _LEAST_S[kind]}
        for kind, wanted in kinds for p in planned if p.id in winners and wanted(p)
    ]  # fmt: skip


class PeerJournal:
    """Records of peers, one line per task; survives a kill at any moment.

    Parameters
    ----------
    path
        The journal.
    header
        What the run is of; a journal of another run is refused.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, self.records, self.versions = path, dict[str, list[dict[str, Any]]](), dict[str, str]()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        try:
            rows = [json.loads(line) for line in lines]
            if rows and rows[0] != dict(header):
                raise ValueError("it belongs to another run")
            for row in rows[1:]:
                self.versions.update(row.get("versions", {}))
                if "key" in row:
                    self.records[row["key"]] = row["peers"]
            # A line that a kill cut off was never written.
            path.write_text("".join(line + "\n" for line in lines) or json.dumps(dict(header)) + "\n", "utf-8")
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise ArtifactError(f"{path}: {err}. Remove it, or choose another --json.") from err

    def add(self, **line: Any) -> None:
        """Keep one line; it is on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.versions.update(line.get("versions", {}))
        if "key" in line:
            self.records[line["key"]] = line["peers"]


def run_tasks(
    tasks: Sequence[Mapping[str, Any]], work: Mapping[str, Any], journal: PeerJournal, deadline: float,
    say: Callable[[str], None], command: Sequence[str] = (sys.executable, str(_WORKER)),
) -> str:  # fmt: skip
    """Work through the tasks that the journal does not know yet.

    Parameters
    ----------
    tasks
        See :func:`tasks_of`.
    work
        What the worker is told beside the tasks: ``bundle``, ``index``, ``seed``, ``time_s``.
    journal
        Where records go.
    deadline
        ``time.monotonic()`` at which the process is ended.
    say
        Receives one line per task.
    command
        The worker; another one in tests.

    Returns
    -------
    str
        Why there are no peers, where there are none; else empty.
    """
    while True:
        left = [dict(t) for t in tasks if t["key"] not in journal.records]
        if not left or time.monotonic() > deadline - min(t["least_s"] for t in left):
            return ""
        begun, reason, orderly = _one_process(left, work, journal, deadline, say, command)
        if begun is None:
            return "" if orderly else reason
        if time.monotonic() >= deadline:
            return ""
        # The task that took the process down is a record; the next process goes on behind it.
        name = "torch" if begun.endswith("/functional") else "torch.compile"
        journal.add(key=begun, peers=[{"name": name, "status": "crashed", "reason": reason, "note": ""}])
        say(f"{begun}: {reason.splitlines()[-1] if reason else 'its process died'}")


def _one_process(
    left: list[dict[str, Any]], work: Mapping[str, Any], journal: PeerJournal, deadline: float,
    say: Callable[[str], None], command: Sequence[str],
) -> tuple[str | None, str, bool]:  # fmt: skip
    """Run one worker to its end; return the task it died in, why, and whether it ended by itself."""
    begun: str | None = None
    closed = False  # a process that is still talking when it is left does not get to finish
    limit_s, since = _START_S, time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdin is not None
        lines = _lines(process)
        try:
            budget_s = deadline - time.monotonic()
            process.stdin.write(json.dumps({**work, "tasks": left, "budget_s": budget_s}).encode() + b"\n")
            process.stdin.close()
            while True:
                try:
                    line = lines.get(timeout=_POLL_S)
                except queue.Empty:
                    now = time.monotonic()
                    if now - since > limit_s:
                        return begun, f"no answer within {limit_s:g} s", False
                    if now > deadline:
                        return begun, "the run's time was spent", True
                    continue
                if line is None:
                    closed = True
                    break
                since = time.monotonic()
                message = json.loads(line)
                if message["event"] == "unavailable":
                    return None, message["reason"], False
                if message["event"] == "ready":
                    journal.add(versions=message["versions"])
                elif message["event"] == "begin":
                    begun = message["key"]
                    limit_s = LIMIT_S[begun.rpartition("/")[2]]
                else:
                    journal.add(key=message["key"], peers=message["peers"])
                    begun = None
                    say(f"{message['key']}: {_told(message['peers'])}")
        except BrokenPipeError:
            pass
        finally:
            _end(process, _LEAVE_S if closed else 0.0)
        errors.seek(0)
        tail = errors.read()[-1000:].decode(errors="replace").strip()
        code = process.returncode
        return (
            begun,
            f"its process ended by {f'signal {-code}' if code < 0 else f'exit code {code}'}: {tail}",
            code == 0,
        )


def _lines(process: subprocess.Popen[bytes]) -> queue.Queue[bytes | None]:
    """Read a process's output in a thread; ``None`` marks its end."""
    found: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found.put(line)
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    return found


def _end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """Let a process end by itself for a while, then end it and what it started."""
    try:
        process.wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _told(peers: Sequence[Mapping[str, Any]]) -> str:
    parts = [
        f"{p['name']} {p['median_s'] * 1e3:.4g} ms, ratio {p['ratio']:.3f}" if p["status"] == "measured"
        else f"{p['name']} {p['status']}: {p['reason'][:120]}"
        for p in peers
    ]  # fmt: skip
    return "; ".join(parts)
