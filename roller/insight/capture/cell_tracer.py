"""Traces code that uses the memory of this process, as a notebook's cell does, in a fork of the process.

The fork can write and reach nothing, as the process of a script, and ends where the steps repeat; models, optimizers
and data of this process stay as they are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from types import CodeType
from typing import IO, Any, NoReturn, cast

from roller.errors import ModelError
from roller.hardware import DeviceSpec
from roller.insight.capture import script_worker
from roller.insight.capture.script_tracer import PATIENCE_S, ScriptTracer
from roller.insight.trace.options import TraceOptions
from roller.insight.traced_step import TracedStep

#: Between two looks whether a fork has ended.
_POLL_S = 0.01


class CellTracer(ScriptTracer):
    """A tracer of code in this process: each trace runs it anew, in a fork of its own.

    Parameters
    ----------
    code, names
        What runs, and the names that it finds and sets.
    name
        Of the code, for messages, e.g. ``"In[3]"``.
    cell_of
        Maps the file name of a notebook cell's code to the name of the cell; ``""`` for other code.
    patience_s, calls
        As of :class:`~roller.insight.capture.script_tracer.ScriptTracer`.

    Raises
    ------
    ModelError
        The system forks no processes, or this process has used a GPU, which a fork of it cannot.
    """

    def __init__(
        self, code: CodeType, names: dict[str, Any], name: str, cell_of: Callable[[str], str] = lambda file: "", *,
        patience_s: float = PATIENCE_S, calls: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, patience_s=patience_s, calls=calls)
        self._code, self._names, self._cell_of = code, names, cell_of
        _check_can_fork(name)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
            self._process = cast("subprocess.Popen[bytes]", _Fork(self._run_in_fork, self._stderr))
        return self._process

    def _run_in_fork(self) -> None:
        os.environ.update(self._environment())
        tempfile.tempdir, sys.dont_write_bytecode = self._own_folder, True
        logging.disable(logging.CRITICAL)  # a kernel logs each message that its fork does not send
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # a pool of threads does not outlive a fork
        script_worker.main(str(self.entry), lambda: exec(self._code, self._names), self._cell_of)


def trace_cell(
    code: CodeType, names: dict[str, Any], name: str, cell_of: Callable[[str], str] = lambda file: "", *,
    batch: int | None = None, device: str | DeviceSpec | None = None, patience_s: float = PATIENCE_S,
    calls: int | None = None,
) -> TracedStep:  # fmt: skip
    """Trace the steps that code in this process takes; arguments as of :class:`CellTracer`.

    Raises
    ------
    ModelError
        The code cannot be traced.
    """
    tracer = CellTracer(code, names, name, cell_of, patience_s=patience_s, calls=calls)
    return tracer.step(TraceOptions(batch, device))


def _check_can_fork(name: str) -> None:
    if not hasattr(os, "fork"):
        raise ModelError(
            f"{name}: expected a system that forks processes, got {sys.platform}. Write the cells into a script, and "
            f"ask: roller profile script.py."
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise ModelError(
            f"{name}: expected a kernel that has not used a GPU, since its fork cannot, got one that has. Restart it, "
            f"and run the cells before this one on the CPU; or write them into a script: roller profile script.py."
        )


class _Fork:
    """A fork of this process, with what is used of ``subprocess.Popen``; its standard streams are pipes and a file."""

    def __init__(self, run: Callable[[], object], stderr: IO[bytes]) -> None:
        requests, answers = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads of a kernel hold no lock that it needs
            self.pid = os.fork()
        if not self.pid:
            _become_worker(run, requests, answers, stderr.fileno())
        os.close(requests[0])
        os.close(answers[1])
        self.stdin, self.stdout = os.fdopen(requests[1], "wb", 0), os.fdopen(answers[0], "rb", 0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, if it has."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):  # somebody else waited for it
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if not pid:
                    return None
                self.returncode = os.waitstatus_to_exitcode(status)
                return self.returncode
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait until it has ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _become_worker(
    run: Callable[[], object], requests: tuple[int, int], answers: tuple[int, int], stderr: int
) -> NoReturn:
    """Run within a fork, and end it, whatever happens."""
    try:
        os.setsid()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_DFL)
        for source, target in ((requests[0], 0), (answers[1], 1), (stderr, 2)):
            os.dup2(source, target)
        for fd in (*requests, *answers):
            os.close(fd)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - until the end of the process
        sys.stdout = sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
        run()
    finally:
        os._exit(1)
