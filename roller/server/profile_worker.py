"""Main loop of a forked process: loads an entry file, profiles its step and executes requests.

Messages have the format of :mod:`roller.backends.message_channel`, without blobs, and the keys of
:mod:`roller.server.profile_request`. A process serves one state of the project's files and is killed when they change.
A newer request cancels an older one when that reaches its next operator.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from roller.backends.message_channel import ChannelClosed, receive_message, send_message
from roller.errors import RollerError, bounded, printable
from roller.insight.trace.entry_file_providers import ProviderErrors
from roller.insight.trace.progress import Cancelled, listening
from roller.server.profile_request import ProfileRequest
from roller.server.split_long_messages import MessageJoiner, split_message

#: Descriptor of standard error, even if the project replaces ``sys.stderr``.
_STDERR = 2


def serve(conversation: int) -> None:
    """Execute requests until the server exits."""
    faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
    own = os.getpid()
    os.register_at_fork(after_in_child=lambda: os.close(conversation))  # children of the project must not answer
    steps: dict[tuple[str, tuple[str, ...]], Any] = {}
    joiner = MessageJoiner()
    with contextlib.suppress(ChannelClosed):
        while True:
            data = joiner.take(receive_message(conversation)[0])
            if data is not None:
                _answer_request(ProfileRequest.from_data(data), conversation, own, steps)


def _answer_request(request: ProfileRequest, conversation: int, own: int, steps: dict[Any, Any]) -> None:
    def tell(stage: str, **values: Any) -> None:
        if os.getpid() != own:
            os._exit(0)  # a child that the project forked and that left it by an exception
        for part in split_message({"id": request.id, "stage": stage, **values}):
            send_message(conversation, part)

    def has_newer_request() -> bool:
        return bool(select.select([conversation], [], [], 0)[0])

    stage = "profile"
    try:
        with listening(_progress_callback(tell), is_cancelled=has_newer_request):
            from roller.server.compute_profile_stages import requested_stages

            for stage, make in requested_stages(request, steps):
                if has_newer_request():
                    break
                data = make()
                tell(stage, data=data, **({"files": _loaded_project_files(request)} if stage == "profile" else {}))
        tell("done", files=_loaded_project_files(request))
    except Cancelled:
        tell("cancelled")
    except RollerError as error:
        problems = error.rows() if isinstance(error, ProviderErrors) else []
        tell("error", at=stage, text=str(error), problems=problems, files=_loaded_project_files(request))
    except ChannelClosed:
        raise
    except BaseException as error:  # noqa: BLE001 - the project's code may raise anything; the server reports it
        tell("error", at=stage, text=_error_text(error, request), problems=[], files=_loaded_project_files(request))


def _progress_callback(tell: Callable[..., None]) -> Callable[[str, int, int], None]:
    from roller.insight.project_worker import rate_limited_listener

    return rate_limited_listener(lambda stage, done, total: tell("progress", what=stage, done=done, total=total))


def _error_text(error: BaseException, request: ProfileRequest) -> str:
    said = bounded(printable("".join(traceback.format_exception_only(error)).strip())).splitlines()
    name = Path(request.entry).name
    return (
        f"{name}: expected a step that can be traced, got {said[-1] if said else 'no message'}. Run {name} by itself."
    )


def _loaded_project_files(request: ProfileRequest) -> list[str]:
    """Return the paths of the entry file and of the project's Python files that are loaded."""
    folder = Path(request.folder).resolve()
    found = {str(Path(request.entry).resolve())}
    for file in _loaded_module_files():
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            path = Path(file).resolve()
            if path.suffix == ".py" and path.is_relative_to(folder) and "site-packages" not in path.parts:
                found.add(str(path))
    return sorted(found)


def _loaded_module_files() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield file
