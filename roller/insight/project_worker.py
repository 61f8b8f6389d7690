"""``python -m roller.insight.project_worker ENTRY``: traces or measures an entry file for ``project_tracer``.

Requests arrive on standard input, and responses go to the original standard output. The user's code gets no input, and
its output goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from roller.backends.message_channel import ChannelClosed, receive_message, send_message
from roller.errors import RollerError
from roller.insight.trace.entry_file_providers import ProviderErrors
from roller.insight.trace.options import DeviceRules, TraceOptions
from roller.insight.trace.progress import listening
from roller.insight.trace.retracer import Retracer
from roller.insight.trace.trace import Trace

#: Minimum interval between progress reports, in seconds.
_EVERY_S = 0.05


def main(entry: str) -> None:
    """Handle requests until the other end of the pipe closes."""
    again: Retracer[Trace] | None = None

    def answer_request(request: dict[str, Any]) -> tuple[dict[str, Any], Trace]:
        nonlocal again
        if "budget_s" in request:
            return _measure_entry(entry, request)
        again = again or _make_retracer(entry, request["calls"])
        trace = again(options_from_request(request))
        return {"files": _loaded_project_files()}, trace

    answer_requests(answer_request)


def answer_requests(answer_request: Callable[[dict[str, Any]], tuple[dict[str, Any], Trace]]) -> None:
    """Respond to each request with data and a trace, or with an error, until the other end of the pipe closes."""
    requests, answers = take_over_standard_pipes()
    own = os.getpid()
    with contextlib.suppress(ChannelClosed):
        while True:
            request, _ = receive_message(requests)
            try:
                with listening(progress_listener_for_pipe(answers)):
                    found, trace = answer_request(request)
                _exit_if_in_forked_process(own)
            except RollerError as error:
                _exit_if_in_forked_process(own)
                problems = error.rows() if isinstance(error, ProviderErrors) else []
                send_message(answers, {"refused": str(error), "problems": problems})
            except BaseException as error:  # noqa: BLE001 - the other end says it; this process goes on or ends there
                _exit_if_in_forked_process(own)
                send_message(answers, {"failed": "".join(traceback.format_exception_only(error)).strip()})
            else:
                send_message(answers, found, [trace.to_json().encode()])


def take_over_standard_pipes() -> tuple[int, int]:
    """Return the pipe ends for requests and responses; this process ends when the request pipe's other end closes.

    From now on, standard input is empty, and standard output goes to standard error.
    """
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    # A process that the user's code forks sends no responses, and must not keep a pipe open after this process ends.
    for pipe in (requests, answers):
        os.register_at_fork(after_in_child=partial(os.close, pipe))
    threading.Thread(target=_exit_when_pipe_closes, args=(requests,), daemon=True).start()
    return requests, answers


def _exit_when_pipe_closes(requests: int) -> None:
    """End this process when the other end of a pipe closes, whatever the user's code is doing."""
    watch = select.poll()
    watch.register(requests, 0)  # its end is always reported
    watch.poll()
    os._exit(1)


def _exit_if_in_forked_process(own: int) -> None:
    """End this process if its id is not ``own``: the user's code forked it, and it has left that code."""
    if os.getpid() != own:
        os._exit(0)


def _make_retracer(entry: str, calls: int | None) -> Retracer[Trace]:
    from roller.insight.tracing import require_torch

    require_torch()
    from roller.insight.trace.pytorch import entry_file

    return entry_file.make_retracer(entry, lambda trace, _: trace, calls=calls)


def _measure_entry(entry: str, request: dict[str, Any]) -> tuple[dict[str, Any], Trace]:
    from roller.insight.tracing import require_torch

    require_torch("measure")
    from roller.insight.trace.pytorch.measure_step import measure_entry, measurement_json_without_trace

    found = measure_entry(entry, options_from_request(request), request["budget_s"])
    return {"measured": measurement_json_without_trace(found)}, found.trace


def options_from_request(request: dict[str, Any]) -> TraceOptions:
    """Return the options in a request."""
    device = request["device"]
    return TraceOptions(
        request["batch"],
        device_rules_from_request(device),
        request["amp"],
        request["checkpoint"],
        request.get("release"),
    )


def device_rules_from_request(device: Any) -> DeviceRules | None:
    """Return the device rules that a request encodes; ``None`` if it has none."""
    return None if device is None else DeviceRules(device[0], (device[1][0], device[1][1]))


def progress_listener_for_pipe(answers: int) -> Callable[[str, int, int], None]:
    """Return a listener that sends progress through a pipe at a limited rate."""
    return rate_limited_listener(lambda *progress: send_message(answers, {"progress": list(progress)}))


def rate_limited_listener(tell: Callable[[str, int, int], None]) -> Callable[[str, int, int], None]:
    """Return a listener that passes progress on to ``tell`` at a limited rate."""
    details = time.monotonic()

    def listener(stage: str, done: int, total: int) -> None:
        nonlocal details
        if time.monotonic() - details > _EVERY_S:
            details = time.monotonic()
            tell(stage, done, total)

    return listener


def _loaded_project_files() -> list[str]:
    """Return the project's loaded files; if one of them changes, a new process has to trace."""
    from roller.insight.trace.pytorch.project_stack_frames import Stacks

    stacks = Stacks(Path.cwd())
    named = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({str(Path(file).resolve()) for file in named if file and not stacks.is_foreign(file)})


if __name__ == "__main__":
    main(sys.argv[1])
