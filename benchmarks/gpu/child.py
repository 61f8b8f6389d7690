"""A process that is told its work in one JSON line and answers in JSON lines; one that is silent too long is ended."""

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
from dataclasses import dataclass
from typing import Any

#: Seconds the libraries may take to be imported and a context to be opened.
START_S = 120.0
_POLL_S = 0.2
#: Seconds a process that has closed its output, or was killed, may take to be gone.
_LEAVE_S = 5.0


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Parameters
    ----------
    reason
        For people.
    orderly
        Whether by itself and without an error, or because the run's time was spent.
    late
        Whether the latter.
    """

    reason: str = ""
    orderly: bool = True
    late: bool = False


def answering() -> tuple[dict[str, Any], Callable[..., None]]:
    """Take the pipe over from standard output, in the process that was started.

    Returns
    -------
    tuple
        Its work, and what sends a message: whatever libraries print goes to standard error from now on, since it must
        not end up in the middle of one.
    """
    sink = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        sink.write(json.dumps(message) + "\n")
        sink.flush()

    return json.loads(sys.stdin.readline()), say


def converse(
    command: Sequence[str], work: Mapping[str, Any], deadline: float, take: Callable[[dict[str, Any]], float]
) -> Ending:
    """Run a process to its end.

    Parameters
    ----------
    command
        What is started.
    work
        Its one line of input.
    deadline
        ``time.monotonic()`` at which it is ended.
    take
        Receives every message; returns the seconds the next one may take.
    """
    limit_s, since, closed = START_S, time.monotonic(), False
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdin is not None
        lines = _lines(process)
        try:
            process.stdin.write(json.dumps(work).encode() + b"\n")
            process.stdin.close()
            while True:
                try:
                    line = lines.get(timeout=_POLL_S)
                except queue.Empty:
                    now = time.monotonic()
                    if now > deadline:
                        return Ending("the run's time was spent", late=True)
                    if now - since > limit_s:
                        return Ending(f"no answer within {limit_s:g} s", orderly=False)
                    continue
                if line is None:
                    closed = True
                    break
                limit_s, since = take(json.loads(line)), time.monotonic()
        except BrokenPipeError:
            closed = True
        finally:
            _end(process, _LEAVE_S if closed else 0.0)
        errors.seek(0)
        tail = errors.read()[-1000:].decode(errors="replace").strip()
    code = process.returncode
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    return Ending(f"its process ended by {how}: {tail}", orderly=code == 0)


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
        try:
            process.wait(timeout=_LEAVE_S)
        except subprocess.TimeoutExpired:  # stuck in its driver: nothing ends it, nothing waits for it
            return
    if process.stdout is not None:
        process.stdout.close()
