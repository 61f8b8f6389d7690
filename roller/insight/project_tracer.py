"""Traces a user's project in a separate process, since tracing sets global hooks and loads the user's modules."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from roller.backends.device_process import end_process
from roller.backends.message_channel import ChannelClosed, receive_message, send_message
from roller.core.package_folders import environment_with_package
from roller.errors import ModelError, shown
from roller.insight.trace.entry_file_providers import ProviderErrors
from roller.insight.trace.options import DeviceRules, TraceOptions, compute_capability_of
from roller.insight.trace.progress import report_progress
from roller.insight.trace.retracer import Retracer
from roller.insight.trace.trace import Trace
from roller.insight.traced_step import TracedStep

#: Seconds between checks for cancellation by the caller.
_POLL_S = 0.1
#: Maximum time, in seconds, to wait for the process to exit once its pipe has closed.
_LEAVE_S = 10.0


class ProjectTracer:
    """A process that traces one entry file, started at the first request.

    The process is restarted if a file that the project loaded has changed, after a failure, and after a cancelled trace
    (:class:`~roller.insight.trace.progress.Cancelled`). Close the tracer, or use it in a ``with`` statement.

    Parameters
    ----------
    entry
        The entry file.
    calls
        See :func:`roller.trace`.
    python
        Interpreter of the project, which needs roller and PyTorch; by default, the current one.

    Examples
    --------
    .. code-block:: python

        with ProjectTracer("train.py") as project:
            step = project.step()
            print(step.forecast("h100").iteration_s)
    """

    #: Module that the process runs, with the entry file as its argument.
    worker = "roller.insight.project_worker"

    def __init__(self, entry: str | Path, *, calls: int | None = None, python: str = sys.executable) -> None:
        self.entry, self._calls, self._python = Path(entry), calls, python
        self._folder = Path.cwd()  # of this process, which may change it before it starts another one
        self._lock = threading.RLock()  # one request at a time: responses come in order
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None
        self._files: Mapping[str, tuple[int, int]] = {}

    def step(self, options: TraceOptions | None = None) -> TracedStep:
        """Return the traced step; its methods trace again in the same process.

        Raises
        ------
        ModelError
            If the entry file cannot be traced, or its process ended.
        Cancelled
            If the caller cancelled the trace.
        """
        return Retracer(self._trace_with_lock, TraceOptions(), TracedStep.of)(options or TraceOptions())

    def close(self) -> None:
        """Stop the process, if any, once any request from another thread has been answered."""
        with self._lock:
            self._stop()

    def kill(self) -> None:
        """Kill the process, if any, without waiting; a request from another thread then fails."""
        process = self._process
        if process is not None:
            process.kill()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, self._stderr)

    def __enter__(self) -> ProjectTracer:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def measure(self, options: TraceOptions, budget_s: float) -> tuple[Trace, dict[str, Any]]:
        """Run the step in a new process; return its trace and measurements.

        The process is stopped afterwards, since running the project may have changed its state.

        Raises
        ------
        ModelError
            If the step fails, or its process ended.
        Cancelled
            If the caller cancelled the measurement.
        """
        with self._lock:
            self._stop()
            try:
                reply, blobs = self._send_request({**self._request(options), "budget_s": budget_s}, "runs")
            finally:
                self._stop()
        return Trace.from_json(blobs[0].decode(), str(self.entry)), reply["measured"]

    def _trace_with_lock(self, options: TraceOptions) -> Trace:
        with self._lock:
            return self._trace(options)

    def _trace(self, options: TraceOptions) -> Trace:
        if any(_modification_time_and_size(file) != known for file, known in self._files.items()):
            self.close()
        reply, blobs = self._send_request(self._request(options), "can be traced")
        self._files = {file: _modification_time_and_size(file) for file in reply["files"]}
        return Trace.from_json(blobs[0].decode(), str(self.entry))

    def _request(self, options: TraceOptions) -> dict[str, Any]:
        name = getattr(options.device, "name", options.device)
        rules = None if name is None else DeviceRules(str(name), compute_capability_of(options.device))
        checkpoint = options.checkpoint
        return {
            "batch": options.batch, "device": rules, "amp": options.amp, "calls": self._calls,
            "release": options.torch_release,
            "checkpoint": checkpoint if isinstance(checkpoint, (bool, str)) else list(checkpoint or ()),
        }  # fmt: skip

    def _send_request(self, request: dict[str, Any], wanted: str) -> tuple[dict[str, Any], list[bytes]]:
        """Return the response to a request; ``wanted`` describes the expected step in the error message."""
        process = self._ensure_process()
        assert process.stdin is not None and process.stdout is not None
        try:
            send_message(process.stdin.fileno(), request)
            reply, blobs = self._receive_reply(process.stdout.fileno())
        except ChannelClosed:
            raise self._process_ended_error() from None
        except BaseException:
            self.close()  # cancelled or interrupted: a later response would not belong to any request
            raise
        if reply.get("problems"):
            raise ProviderErrors.from_json_rows(reply["problems"])
        if "refused" in reply:
            raise ModelError(reply["refused"])
        if "failed" in reply:
            said = shown(reply["failed"])
            raise ModelError(f"{self.entry}: expected a step that {wanted}, got {said}. Run the file by itself.")
        return reply, blobs

    def _environment(self) -> dict[str, str]:
        """Return additional environment variables for the process."""
        return {}

    def _receive_reply(self, fd: int) -> tuple[dict[str, Any], list[bytes]]:
        """Return the response; until it arrives, report progress to the listeners, which may cancel the request."""
        last: tuple[str, int, int] = ("trace", 0, 0)
        while True:
            if not select.select([fd], [], [], _POLL_S)[0]:
                report_progress(*last)
                continue
            reply, blobs = receive_message(fd)
            if "progress" not in reply:
                return reply, blobs
            stage, done, total = reply["progress"]
            last = (str(stage), int(done), int(total))
            report_progress(*last)

    def _ensure_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
            try:
                self._process = subprocess.Popen(
                    [self._python, "-m", self.worker, str(self.entry)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
                    env={**environment_with_package(), **self._environment()},
                    start_new_session=True, bufsize=0, cwd=self._folder,
                )  # fmt: skip
            except OSError as error:
                self._stderr.close()
                raise ModelError(
                    f"{shown(self._python)}: expected an interpreter with roller and PyTorch, got {error.strerror}. "
                    f"Name its python."
                ) from error
            self._files = {}
        return self._process

    def _process_ended_error(self) -> ModelError:
        """Return an error that states how the process ended and the last line that it wrote."""
        process, stderr = self._process, self._stderr
        assert process is not None and stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S)
        stderr.seek(0)
        lines = stderr.read().decode(errors="replace").strip().splitlines()
        code = process.returncode
        how = "no end" if code is None else f"its end by signal {-code}" if code < 0 else f"its end with status {code}"
        self.close()
        last = f", after {shown(lines[-1])}" if lines else ""
        return ModelError(
            f"{self.entry}: expected a trace from the project's process, got {how}{last}. Run the file by itself."
        )


def _modification_time_and_size(file: str) -> tuple[int, int]:
    """Return properties that change with a file's content: its modification time and size."""
    try:
        found = os.stat(file)
    except OSError:
        return (0, -1)
    return (found.st_mtime_ns, found.st_size)
