"""Progress reports in the editor on running profiles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

if TYPE_CHECKING:
    from roller.server.lsp.editor_session import EditorSession

#: Minimum time in seconds between two reports.
_EVERY_S = 0.2
_STAGES = {"trace": "tracing", "price": "pricing", "measure": "measuring", "sweep": "sweeping"}
_COUNTED = {"trace": "operators", "price": "operators"}


@dataclass
class _OpenProgress:
    """Progress of one profile: token, whether the client shows the progress, and next text."""

    token: str
    has_begun: bool = False
    next: str = ""
    timer: asyncio.TimerHandle | None = None


class ProgressReports:
    """Reports the progress of profiles to a client that supports progress reports."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self._count = 0
        #: Open reports by session. Reports have no percentage, since a profile runs its stages many times.
        self._open: dict[int, _OpenProgress] = {}

    def take(self, shown: EditorSession, message: Mapping[str, Any]) -> None:
        """Begin, update or end a session's progress report, as the session's message requires."""
        window = self._server.client_capabilities.window
        if window is None or not window.work_done_progress:
            return
        key = id(shown)
        found = self._open.get(key)
        if message["type"] == "progress" and found is not None and found.has_begun:
            self._report_throttled(found, progress_text(*message["progress"]))
        elif message["type"] == "state" and message["status"] == "running":
            if found is None:
                self._begin(key, f"Profiling {shown.project.entry_name}")
        elif message["type"] == "state" and found is not None:
            del self._open[key]
            if found.timer is not None:
                found.timer.cancel()
            if found.has_begun:
                end = types.WorkDoneProgressEnd(message=message["status"])
                self._server.work_done_progress.end(found.token, end)

    def _report_throttled(self, found: _OpenProgress, text: str) -> None:
        """Report the latest text, at most once per interval."""
        found.next = text
        if found.timer is None:
            self._tell(found)

    def _tell(self, found: _OpenProgress) -> None:
        found.timer = None
        if found.next:
            self._server.work_done_progress.report(found.token, types.WorkDoneProgressReport(message=found.next))
            found.next = ""
            found.timer = asyncio.get_running_loop().call_later(_EVERY_S, self._tell, found)

    def _begin(self, key: int, title: str) -> None:
        self._count += 1
        progress, found = self._server.work_done_progress, _OpenProgress(f"roller-{self._count}")

        def begin(*_: Any) -> None:
            if self._open.get(key) is found and not found.has_begun:  # the profile may have ended meanwhile
                found.has_begun = True
                progress.begin(found.token, types.WorkDoneProgressBegin(title, cancellable=False))

        self._open[key] = found
        progress.create(found.token, begin)


def progress_text(stage: str, done: int, total: int) -> str:
    """Describe the progress of a stage.

    Examples
    --------
    >>> progress_text("trace", 1174, 0), progress_text("price", 26, 536)
    ('tracing: 1174 operators', 'pricing: 26 of 536 operators')
    """
    count = f"{done} of {total}" if total else f"{done}"
    return " ".join(filter(None, (f"{_STAGES.get(stage, stage)}: {count}", _COUNTED.get(stage, ""))))
