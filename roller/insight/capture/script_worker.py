"""``python -m roller.insight.capture.script_worker SCRIPT``: traces a training script once, for ``script_tracer``.

The request arrives on standard input, and the response goes to the original standard output. The process then ends,
inside the script if its steps have been traced.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from roller.backends.message_channel import receive_message, send_message
from roller.errors import RollerError
from roller.insight.capture.idle_timeout import IdleTimeout
from roller.insight.capture.operating_system_sandbox import disconnect_from_network, limit_writes_to_folder
from roller.insight.capture.python_sandbox import BlockedOperationError, PythonSandbox
from roller.insight.project_worker import (
    device_rules_from_request,
    progress_listener_for_pipe,
    take_over_standard_pipes,
)
from roller.insight.trace.options import TraceOptions
from roller.insight.trace.progress import listening
from roller.insight.trace.trace import Trace
from roller.insight.tracing import require_torch

if TYPE_CHECKING:
    from roller.insight.trace.pytorch.script_runner import ScriptRunner

#: Environment variable with the folder that this process may write into.
FOLDER = "ROLLER_SCRIPT_FOLDER"
#: Number of blocked operations of a script that a note names.
_MOST_NAMED = 4
#: Number of bytes at the end of standard error that are searched for the last line.
_LAST_BYTES = 2000


def blocked_operations_notes(things: Sequence[str]) -> list[str]:
    """Return a list of one note that names a script's blocked and redirected operations; ``[]`` if there were none."""
    if not things:
        return []
    more = f", and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
    return [f"script: blocked or redirected: {'; '.join(things[:_MOST_NAMED])}{more}."]


class ScriptWorker:
    """Handles one request to trace a script.

    Parameters
    ----------
    script
        Path of the script.
    answers
        Stream to which the response is written.
    request
        ``arguments``, ``batch``, ``device``, ``calls``, ``patience_s``.
    body
        Code in this process that runs instead of a script file; ``script`` is then only a name.
    cell_of
        Maps the file name of a notebook cell's code to the name of the cell; ``""`` for other code.
    """

    def __init__(
        self, script: str, answers: int, request: dict[str, Any], body: Callable[[], Any] | None = None,
        cell_of: Callable[[str], str] | None = None,
    ) -> None:  # fmt: skip
        self._script, self._answers, self._request = script, answers, request
        self._body, self._cell_of = body, cell_of
        self._own = os.getpid()
        self._kept_from: dict[str, None] = {}
        self._tracer: ScriptRunner | None = None
        self._sending = threading.Lock()

    def run(self) -> NoReturn:
        """Trace the script, send the response and end the process."""
        try:
            require_torch("profile")
            tracer = self._tracer = self._make_tracer()
            send_progress, patience = progress_listener_for_pipe(self._answers), self._make_idle_timeout()

            def report_activity() -> None:
                if tracer.session.is_preparing:
                    patience.sign()

            def listener(stage: str, done: int, total: int) -> None:
                report_activity()
                with self._sending:
                    send_progress(stage, done, total)

            tracer.sign, tracer.last_words = report_activity, _last_stderr_line

            folder = os.environ[FOLDER]
            PythonSandbox(folder, self._record_blocked_operation).install()
            limit_writes_to_folder(folder)
            patience.start()
            with listening(listener):
                trace = tracer.run()
        except RollerError as error:
            self._answer({"refused": self._missing_trace_reason(error)})
        except BaseException as error:  # noqa: BLE001 - the other end says it
            self._answer({"failed": "".join(traceback.format_exception_only(error)).strip()})
        self._answer_with_trace_and_exit(trace)

    def _make_tracer(self) -> ScriptRunner:
        from roller.insight.trace.pytorch.script_runner import Script, ScriptRunner

        given = self._request
        options = TraceOptions(
            given["batch"], device_rules_from_request(given["device"]), torch_release=given.get("release")
        )
        script = Script(Path(self._script), tuple(given["arguments"]), self._body)
        tracer = ScriptRunner(script, options, given["calls"], self._answer_with_trace_and_exit)
        if self._cell_of is not None:
            tracer.session.origins.stacks.cell_of = self._cell_of
        return tracer

    def _make_idle_timeout(self) -> IdleTimeout:
        from roller.insight.trace.pytorch.recognize_script_steps import no_training_error

        seconds = self._request["patience_s"]

        def refuse_idle_script(frame: FrameType | None) -> None:
            if self._tracer is not None and self._tracer.session.is_complete:  # it makes its trace
                return
            where = self._current_script_line(frame)
            self._answer({"refused": str(no_training_error(self._script, f"{seconds:g} seconds{where}"))})

        return IdleTimeout(seconds, refuse_idle_script)

    def _current_script_line(self, frame: FrameType | None) -> str:
        """Return the line of the script that is running, for a message; ``""`` if it is unknown."""
        while frame is not None and self._tracer is not None:
            stacks, file = self._tracer.session.origins.stacks, frame.f_code.co_filename
            if not stacks.is_foreign(file):
                return f", the last at {stacks.file_name_for_messages(file)}:{frame.f_lineno},"
            frame = frame.f_back
        return ""

    def _record_blocked_operation(self, what: str) -> None:
        """Note once that an operation was blocked or redirected, with the line of the script that requested it."""
        self._kept_from.setdefault(what + self._current_project_line_text())

    def _missing_trace_reason(self, error: RollerError) -> str:
        """Return why there is no trace, naming blocked operations, since they may be the cause."""
        refused = error.__context__
        if isinstance(refused, BlockedOperationError):
            return (
                f"{self._script}: expected a script that changes no files, starts no programs and uses no network "
                f"before it trains, got {list(self._kept_from)[-1]}. Pass arguments that avoid it after --, or catch "
                f"the PermissionError in the script."
            )
        return " ".join([str(error), *blocked_operations_notes(list(self._kept_from))])

    def _current_project_line_text(self) -> str:
        assert self._tracer is not None
        stack = self._tracer.session.origins.stacks.current_stack()
        return f" at {stack[-1].file}:{stack[-1].line}" if stack else ""

    def _answer_with_trace_and_exit(self, trace: Trace) -> NoReturn:
        self._answer({"kept_from": list(self._kept_from)}, [trace.to_json().encode()])

    def _answer(self, header: dict[str, Any], blobs: Any = ()) -> NoReturn:
        with self._sending:  # the first response of this process is its only one
            if os.getpid() == self._own:
                send_message(self._answers, header, blobs)
            os._exit(0)  # past every except, finally and atexit of the script


def _last_stderr_line() -> str:
    """Return the last line of standard error, which is a file in this process; ``""`` if there is none."""
    try:
        sys.stderr.flush()
        size = os.fstat(2).st_size
        text = os.pread(2, _LAST_BYTES, max(0, size - _LAST_BYTES)).decode(errors="replace")
    except (OSError, ValueError):
        return ""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def main(script: str, body: Callable[[], Any] | None = None, cell_of: Callable[[str], str] | None = None) -> None:
    """Handle one request; see :class:`ScriptWorker` for the arguments."""
    disconnect_from_network()
    requests, answers = take_over_standard_pipes()
    request, _ = receive_message(requests)
    ScriptWorker(script, answers, request, body, cell_of).run()


if __name__ == "__main__":
    main(sys.argv[1])
