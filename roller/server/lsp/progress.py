"""The progress of running profiles, as the editor shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lsprotocol import types

if TYPE_CHECKING:
    from roller.server.lsp.editor_session import EditorSession
    from roller.server.lsp.language_server import RollerLanguageServer


class ProgressReports:
    """Tells a client how far profiles are, if it can show that.

    Parameters
    ----------
    server
        The server that talks with it.
    """

    def __init__(self, server: RollerLanguageServer) -> None:
        self._server = server
        self._count = 0
        #: By session: its token, and whether the client has begun to show it.
        self._open: dict[int, tuple[str, bool]] = {}

    def take(self, shown: EditorSession, message: Mapping[str, Any]) -> None:
        """Begin, go on or end, as a message of a session says."""
        window = self._server.client_capabilities.window
        if window is None or not window.work_done_progress:
            return
        progress, key = self._server.work_done_progress, id(shown)
        token, has_begun = self._open.get(key, ("", False))
        if message["type"] == "progress" and has_begun:
            what, done, total = message["progress"]
            percentage = None if not total else min(100, 100 * done // total)
            said = f"{what} {done}" + (f" of {total}" if total else "")
            progress.report(token, types.WorkDoneProgressReport(message=said, percentage=percentage))
        elif message["type"] == "state" and message["status"] == "running":
            if not token:
                self._begin(key, f"Profiling {shown.project.entry_name}")
        elif message["type"] == "state" and token:
            del self._open[key]
            if has_begun:
                progress.end(token, types.WorkDoneProgressEnd(message=message["status"]))

    def _begin(self, key: int, title: str) -> None:
        self._count += 1
        token, progress = f"roller-{self._count}", self._server.work_done_progress

        def begin(*_: Any) -> None:
            if self._open.get(key) == (token, False):  # it has not ended meanwhile
                self._open[key] = (token, True)
                progress.begin(token, types.WorkDoneProgressBegin(title, cancellable=False))

        self._open[key] = (token, False)
        progress.create(token, begin)
