"""State of the language server for its client: settings, sessions of entry files, and documents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from roller.errors import RollerError
from roller.insight.step_profile.profiling import profile_source_file_kind
from roller.server.lsp.diagnostics import diagnostics_by_file
from roller.server.lsp.editor_session import EditorSession
from roller.server.lsp.positions import Encoding
from roller.server.lsp.progress import ProgressReports
from roller.server.lsp.settings import Settings, SettingsError, unknown_settings_message
from roller.server.profiling_process_connections import WorkerProcesses
from roller.server.project_files import ProjectError

if TYPE_CHECKING:
    from roller.server.lsp.editor_page import EditorPage

#: Time in seconds without an edit before diagnostics are sent again.
_PAUSE_S = 0.2


class EditorState:
    """Sessions, pages and settings of one client."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server
        self.settings = Settings()
        self._wrong_settings = self._unknown_settings = ""
        self._processes: WorkerProcesses | None = None
        #: Sessions by entry file, the most recently used one last.
        self.sessions: dict[Path, EditorSession] = {}
        self.pages: dict[Path, EditorPage] = {}
        #: Diagnostics last published, by entry file and file name.
        self._published: dict[Path, dict[str, types.PublishDiagnosticsParams]] = {}
        self._waiting: dict[Path, asyncio.TimerHandle] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._progress = ProgressReports(server)

    @property
    def encoding(self) -> Encoding:
        """Unit of the client's text positions."""
        return self._server.workspace.position_encoding or types.PositionEncodingKind.Utf16

    # Settings

    def configure(self, data: Any) -> None:
        """Apply settings; keep errors in them for :meth:`read_configuration` and :meth:`profile` to report."""
        if data is None:
            return
        self._unknown_settings = unknown_settings_message(data)
        try:
            self.settings, self._wrong_settings = self.settings.updated_from_json(data), ""
        except SettingsError as error:
            self._wrong_settings = str(error)

    async def read_configuration(self) -> None:
        """Request the client's settings if it supports that; show messages about wrong and unknown settings."""
        workspace = self._server.client_capabilities.workspace
        if workspace is not None and workspace.configuration:
            asked = types.ConfigurationParams([types.ConfigurationItem(section="roller")])
            with contextlib.suppress(Exception):  # the client may not answer
                found = await self._server.workspace_configuration_async(asked)
                self.configure(found[0] if found else None)
        if self._wrong_settings:
            self._show_message(self._wrong_settings, types.MessageType.Error)
        if self._unknown_settings:
            self._show_message(self._unknown_settings, types.MessageType.Warning)
            self._unknown_settings = ""

    def _show_message(self, text: str, kind: types.MessageType) -> None:
        self._server.window_show_message(types.ShowMessageParams(kind, text))

    # Documents

    def document(self, uri: str) -> tuple[EditorSession, str, str] | None:
        """Return the session, project-relative name and text of a document; ``None`` without a session."""
        path = resolved_path_of_uri(uri)
        for one in reversed(self.sessions.values()):
            name = None if path is None else one.name_if_profiled(path)
            if name is not None:
                text = self.text_of_file(one, name)
                return None if text is None else (one, name, text)
        return None

    def text_of_file(self, shown: EditorSession, name: str) -> str | None:
        """Return the text of a file, from the editor if it is open there, otherwise from disk."""
        document = self.open_document(shown.project.folder / name)
        if document is not None:
            return str(document.source)
        try:
            return shown.project.read(name).text
        except ProjectError:
            return None

    def open_document(self, path: Path) -> Any:
        """Return the editor's open document for a file; ``None`` if the file is not open."""
        for uri, document in self._server.workspace.text_documents.items():
            if resolved_path_of_uri(uri) == path:
                return document
        return None

    def uri_of(self, path: Path) -> str:
        """Return the URI of a file, in the client's spelling if it is open there."""
        document = self.open_document(path)
        return str(document.uri) if document is not None else str(from_fs_path(str(path)))

    # Sessions

    async def profile(self, uri: str) -> EditorSession:
        """Profile the configured entry file; without one, the file of ``uri`` or the entry file of its session."""
        if self._wrong_settings:
            raise SettingsError(self._wrong_settings)
        entry = self._entry_file_of(uri)
        shown = self.sessions.pop(entry, None)
        if shown is not None:
            self.sessions[entry] = shown
            shown.session.profile()
            return shown
        if profile_source_file_kind(entry) == "script" and not self.settings.runs_scripts:
            raise RollerError(
                f"{entry.name}: expected an entry file with providers, got a training script, which would run up to "
                f"its first steps. Set roller.runScripts to true, or name the entry file as roller.entry."
            )
        if self._processes is None:
            self._processes = WorkerProcesses()
        settings = self.settings
        shown = EditorSession(
            entry, self._processes, settings.options, arguments=settings.arguments, is_live=settings.is_live,
            patience_s=settings.patience_s, changed=self._take,
        )  # fmt: skip
        self.sessions[entry] = shown
        await shown.start()
        return shown

    def _entry_file_of(self, uri: str) -> Path:
        path = resolved_path_of_uri(uri) if uri else None
        if uri and path is None:
            raise RollerError(f"profile: expected a file, got {uri[:80]}. Save it first.")
        if self.settings.entry:
            root = self._server.workspace.root_path
            return (Path(root or ".") / self.settings.entry).resolve()
        if path is not None and path not in self.sessions and profile_source_file_kind(path) == "script":
            found = self.document(uri)  # a module imported by an entry file looks like a script
            if found is not None:
                return found[0].project.entry
        if path is None:
            raise RollerError("profile: expected an entry file, got none. Open one, or set roller.entry.")
        return path

    def session_of(self, uri: str) -> EditorSession:
        """Return a file's session or, for ``""``, the most recently used session; raise an error if there is none."""
        found = self.document(uri) if uri else None
        if found is not None:
            return found[0]
        if not uri and self.sessions:
            return next(reversed(self.sessions.values()))
        name = Path(resolved_path_of_uri(uri) or uri).name or "the workspace"
        raise RollerError(f"{name}: expected a file with a profile, got none. Use roller.profile on an entry file.")

    async def snapshot(self, uri: str, waits: bool) -> dict[str, Any]:
        """Return the whole state of a file's session; if ``waits``, wait for the running profile to end first."""
        shown = self.session_of(uri)
        if waits:
            async with self._changed:
                await self._changed.wait_for(lambda: shown.is_settled or shown.is_closed)
        return {**shown.session.snapshot(), "entry": shown.project.entry_name, "stale": shown.is_stale}

    def saved(self, uri: str) -> None:
        """Check all files now instead of at the next poll; send the diagnostics of the saved file's session."""
        for one in self.sessions.values():
            one.session.check_files_for_changes()
        self.publish(uri)

    async def start_or_get_page(self, shown: EditorSession) -> EditorPage:
        """Return the page of a session; start it if necessary."""
        entry = shown.project.entry
        try:
            from roller.server.lsp.editor_page import EditorPage, profilable_device_facts
        except ImportError as error:
            raise RollerError(
                f"showPage: expected the package {error.name}, got none. Install roller with the extra 'serve'."
            ) from error
        devices = await asyncio.get_running_loop().run_in_executor(None, profilable_device_facts)
        if entry in self.pages and not self.pages[entry].is_served:
            await self.pages.pop(entry).close()
        if entry not in self.pages:
            self.pages[entry] = EditorPage(shown.session, devices)
        await self.pages[entry].wait_until_started()
        return self.pages[entry]

    async def close(self) -> None:
        """End all sessions, pages and processes."""
        for timer in self._waiting.values():
            timer.cancel()
        for page in self.pages.values():
            await page.close()
        self.pages.clear()
        for shown in tuple(self.sessions.values()):
            await shown.close()
        self.sessions.clear()
        await self._wake_waiting_requests()  # requests that wait for a profile get the current state
        if self._processes is not None:
            await self._processes.close()
            self._processes = None

    # Messages

    def _take(self, shown: EditorSession, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        self._spawn(
            self._wake_waiting_requests()
        )  # first, so that waiting requests continue even if something below fails
        self._progress.take(shown, message)
        if kind == "state" or (kind == "result" and message["stage"] in ("profile", "fit", "hints")):
            self._publish_changed_diagnostics(shown)
        if kind == "state" or (kind == "result" and message["stage"] == "profile"):
            self._refresh_lenses_and_hints()

    async def _wake_waiting_requests(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def publish(self, uri: str) -> None:
        """Send the diagnostics for a file's session."""
        found = self.document(uri)
        if found is not None:
            self._publish_changed_diagnostics(found[0])

    def publish_diagnostics_soon(self, uri: str) -> None:
        """Send the diagnostics for a file's session after a pause in typing."""
        found = self.document(uri)
        if found is None:
            return
        entry = found[0].project.entry
        if entry in self._waiting:
            self._waiting[entry].cancel()
        loop = asyncio.get_running_loop()
        self._waiting[entry] = loop.call_later(_PAUSE_S, self._publish_changed_diagnostics, found[0])

    def _publish_changed_diagnostics(self, shown: EditorSession) -> None:
        placed = diagnostics_by_file(shown, lambda name: self.text_of_file(shown, name), self.encoding)
        before = self._published.get(shown.project.entry, {})
        made: dict[str, types.PublishDiagnosticsParams] = {}
        for name in {*placed, *before}:
            document = self.open_document(shown.project.folder / name)
            uri = self.uri_of(shown.project.folder / name)
            params = types.PublishDiagnosticsParams(
                uri, placed.get(name, []), None if document is None else document.version
            )
            if params != before.get(name):
                self._server.text_document_publish_diagnostics(params)
            if params.diagnostics:
                made[name] = params
        self._published[shown.project.entry] = made

    def _refresh_lenses_and_hints(self) -> None:
        """Ask the client to request lenses and inlay hints again, if the client supports that."""
        workspace = self._server.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self._server.workspace_code_lens_refresh(None)
        if workspace is not None and workspace.inlay_hint is not None and workspace.inlay_hint.refresh_support:
            self._server.workspace_inlay_hint_refresh(None)

    def set_devices(self, shown: EditorSession, devices: tuple[tuple[str, int], ...]) -> None:
        """Profile the step on other devices."""
        shown.session.set_options(replace(shown.session.options, devices=devices))


def resolved_path_of_uri(uri: str) -> Path | None:
    """Return the resolved path of a file URI; ``None`` for other URIs."""
    try:
        path = to_fs_path(uri) if uri.startswith("file:") else None
        return None if not path else Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        return None
