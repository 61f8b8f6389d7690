"""Traces code that uses this process's objects, such as a notebook cell, in a fork of the process.

Like the process that traces a script, the fork can neither change files nor use the network, and it ends once the steps
repeat. This process's models, optimizers and data stay unchanged.
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
from roller.insight.capture.idle_timeout import PATIENCE_S
from roller.insight.capture.script_tracer import ScriptTracer
from roller.insight.trace.options import TraceOptions
from roller.insight.traced_step import TracedStep

#: Seconds between checks whether a fork has ended.
_POLL_S = 0.01


class CellTracer(ScriptTracer):
    """Tracer for code in this process; each trace runs the code in a new fork.

    Parameters
    ----------
    code, names
        The code, and the global names that it reads and sets.
    name
        Name of the code in messages, e.g. ``"In[3]"``.
    cell_of
        Maps the file name of a notebook cell's code to the name of the cell; ``""`` for other code.
    patience_s, calls
        See :class:`~roller.insight.capture.script_tracer.ScriptTracer`.

    Raises
    ------
    ModelError
        If the system does not have ``fork``, or this process has used a GPU, which a forked process then cannot use.
    """

    def __init__(
        self, code: CodeType, names: dict[str, Any], name: str, cell_of: Callable[[str], str] = lambda file: "", *,
        patience_s: float = PATIENCE_S, calls: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, patience_s=patience_s, calls=calls)
        self._code, self._names, self._cell_of = code, names, cell_of
        _check_can_fork(name)

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
            self._process = cast("subprocess.Popen[bytes]", _Fork(self._run_in_fork, self._stderr))
        return self._process

    def _run_in_fork(self) -> None:
        os.environ.update(self._environment())
        tempfile.tempdir, sys.dont_write_bytecode = self._own_folder, True
        logging.disable(logging.CRITICAL)  # a notebook kernel logs each message that its fork cannot send
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # the threads of the pool do not exist in a fork
        script_worker.main(str(self.entry), lambda: exec(self._code, self._names), self._cell_of)


def trace_cell(
    code: CodeType, names: dict[str, Any], name: str, cell_of: Callable[[str], str] = lambda file: "", *,
    batch: int | None = None, device: str | DeviceSpec | None = None, patience_s: float = PATIENCE_S,
    calls: int | None = None,
) -> TracedStep:  # fmt: skip
    """Trace the steps that code in this process takes; see :class:`CellTracer` for the arguments.

    Raises
    ------
    ModelError
        If the code cannot be traced.
    """
    tracer = CellTracer(code, names, name, cell_of, patience_s=patience_s, calls=calls)
    return tracer.step(TraceOptions(batch, device))


def _check_can_fork(name: str) -> None:
    if not hasattr(os, "fork"):
        raise ModelError(
            f"{name}: expected a system that forks processes, got {sys.platform}. Move the cells to a script and run "
            f"roller profile script.py."
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise ModelError(
            f"{name}: expected a kernel that has not used a GPU, which its fork could not use, got one that has. "
            f"Restart it and run the earlier cells on the CPU, or move the cells to a script: roller profile script.py."
        )


class _Fork:
    """A fork of this process, with the part of ``subprocess.Popen``'s interface that the tracer uses."""

    def __init__(self, run: Callable[[], object], stderr: IO[bytes]) -> None:
        requests, answers = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            # Python warns about other threads; a notebook kernel's threads do not hold any lock that the fork needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            _run_worker_in_fork_and_exit(run, requests, answers, stderr.fileno())
        os.close(requests[0])
        os.close(answers[1])
        self.stdin, self.stdout = os.fdopen(requests[1], "wb", 0), os.fdopen(answers[0], "rb", 0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; ``None`` while the fork is running."""
        if self.returncode is None:
            with contextlib.suppress(ChildProcessError):  # other code has already waited for it
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if not pid:
                    return None
                self.returncode = os.waitstatus_to_exitcode(status)
                return self.returncode
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the fork to end and return its exit code."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(_POLL_S)
        return code

    def kill(self) -> None:
        """End the fork at once."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _run_worker_in_fork_and_exit(
    run: Callable[[], object], requests: tuple[int, int], answers: tuple[int, int], stderr: int
) -> NoReturn:
    """Call ``run`` in the fork that called this function, then end the fork in any case."""
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
