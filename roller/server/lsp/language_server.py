"""Language server of ``roller lsp``, documented in docs/guides/editor.md.

The server runs no project code until a client requests a profile of an entry file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Mapping
from importlib.metadata import version
from typing import Any

from lsprotocol import types
from pygls.exceptions import FeatureRequestError
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from roller.errors import RollerError
from roller.errors import shown as shown_text
from roller.server.lsp import commands, lenses_and_hovers
from roller.server.lsp.editor_state import EditorState
from roller.server.lsp.gc_pause_tuning import tune_gc_and_switch_interval
from roller.server.time_limit import await_with_limit

#: Version of the commands, requests and data; a client that expects a different version refuses the server.
PROTOCOL = 1


class _OrderedProtocol(LanguageServerProtocol):
    _was_initialized = False

    def handle_message(self, message: Any) -> None:
        """Reject messages before ``initialize``, repeated ``initialize`` messages, and messages after ``shutdown``."""
        method = getattr(message, "method", None)
        why = self._order_violation(method) if method is not None and method != types.EXIT else None
        if why is None:
            self._was_initialized |= method == types.INITIALIZE
            super().handle_message(message)
        elif hasattr(message, "id"):
            code, text = why
            self._send_response(message.id, None, types.ResponseError(code, text))

    def _order_violation(self, method: str) -> tuple[int, str] | None:
        if self._shutdown:
            return types.ErrorCodes.InvalidRequest, f"{method}: expected exit after shutdown, got another message."
        if not self._was_initialized and method != types.INITIALIZE:
            return types.ErrorCodes.ServerNotInitialized, f"{method}: expected initialize first. Send that."
        if self._was_initialized and method == types.INITIALIZE:
            return types.ErrorCodes.InvalidRequest, "initialize: expected once, got again. Start another server."
        return None

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        """Add the protocol version to the capabilities."""
        result = yield from super().lsp_initialize(params)
        result.capabilities.experimental = {"roller": {"protocol": PROTOCOL}}
        return result


class RollerLanguageServer(LanguageServer):
    """Server for one client; documents are synchronized in full, since pygls ends lines at form feeds."""

    def __init__(self) -> None:
        super().__init__(
            "roller", version("roller"), types.TextDocumentSyncKind.Full, protocol_cls=_OrderedProtocol, max_workers=2
        )
        self.editor = EditorState(self)
        self.was_shut_down = False

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log an invalid notification, such as an edit of a document that is not open."""
        if not issubclass(source, FeatureRequestError):
            said = f"expected a message of the protocol, got another ({shown_text(str(error))}). It was passed over."
            self.window_log_message(types.LogMessageParams(types.MessageType.Warning, said))


def make_server() -> RollerLanguageServer:
    """Return a server on which all requests and commands are registered."""
    server = RollerLanguageServer()
    _register_lifetime(server)
    _register_documents(server)
    _register_requests(server)
    commands.register_commands(server, server.editor)
    return server


def serve_editor() -> None:
    """Serve a client on standard input and output until it disconnects."""
    logging.getLogger("pygls").setLevel(logging.CRITICAL)  # a refusal is an answer, not an error of the server
    output, sys.stdout = sys.stdout.buffer, sys.stderr  # prints must not mix with the messages
    server = make_server()
    tune_gc_and_switch_interval()
    server.start_io(sys.stdin.buffer, output)


def _register_lifetime(server: RollerLanguageServer) -> None:
    @server.feature(types.INITIALIZE)
    def initialize(ls: RollerLanguageServer, params: types.InitializeParams) -> None:
        ls.editor.configure(params.initialization_options)

    @server.feature(types.INITIALIZED)
    async def initialized(ls: RollerLanguageServer, params: types.InitializedParams) -> None:
        await ls.editor.read_configuration()

    @server.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)
    async def did_change_configuration(ls: RollerLanguageServer, params: types.DidChangeConfigurationParams) -> None:
        settings = params.settings
        if isinstance(settings, Mapping) and "roller" in settings:
            ls.editor.configure(settings["roller"])
        await ls.editor.read_configuration()

    @server.feature(types.SHUTDOWN)
    async def shutdown(ls: RollerLanguageServer, params: None) -> None:
        ls.was_shut_down = True
        await ls.editor.close()

    @server.feature(types.EXIT)
    async def exit_process(ls: RollerLanguageServer, params: None) -> None:
        try:
            await await_with_limit(5.0, ls.editor.close())
        finally:
            os._exit(0 if ls.was_shut_down else 1)  # a thread may still block on input that the client left open


def _register_documents(server: RollerLanguageServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: RollerLanguageServer, params: types.DidOpenTextDocumentParams) -> None:
        ls.editor.publish(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(ls: RollerLanguageServer, params: types.DidChangeTextDocumentParams) -> None:
        ls.editor.publish_diagnostics_soon(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: RollerLanguageServer, params: types.DidSaveTextDocumentParams) -> None:
        ls.editor.saved(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(ls: RollerLanguageServer, params: types.DidCloseTextDocumentParams) -> None:
        ls.editor.publish(params.text_document.uri)


def _register_requests(server: RollerLanguageServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_CODE_LENS)
    def lenses(ls: RollerLanguageServer, params: types.CodeLensParams) -> list[types.CodeLens]:
        found = ls.editor.document(params.text_document.uri)
        return (
            [] if found is None else lenses_and_hovers.code_lenses(*found, params.text_document.uri, ls.editor.encoding)
        )

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(ls: RollerLanguageServer, params: types.HoverParams) -> types.Hover | None:
        found = ls.editor.document(params.text_document.uri)
        return None if found is None else lenses_and_hovers.hover_at(*found, params.position, ls.editor.encoding)

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def inlays(ls: RollerLanguageServer, params: types.InlayHintParams) -> list[types.InlayHint]:
        found = ls.editor.document(params.text_document.uri)
        return [] if found is None else lenses_and_hovers.inlay_hints(*found, params.range, ls.editor.encoding)

    @server.feature("roller/profile")
    async def profile(ls: RollerLanguageServer, params: Any) -> dict[str, Any]:
        try:
            uri, waits = commands.text_parameter(params, "uri"), getattr(params, "wait", False) is True
            return await ls.editor.snapshot(uri, waits)
        except RollerError as error:
            raise commands.RefusedError(str(error)) from None

    @server.feature("roller/status")
    def status(ls: RollerLanguageServer, params: Any) -> dict[str, Any]:
        try:
            found = ls.editor.session_of(commands.text_parameter(params, "uri"))
        except RollerError as error:
            raise commands.RefusedError(str(error)) from None
        state = found.session.state
        return {"status": state.status, "revision": state.revision, "progress": state.progress, "stale": found.is_stale}

    @server.feature("roller/line")
    def line(ls: RollerLanguageServer, params: Any) -> dict[str, Any] | None:
        found = ls.editor.document(commands.text_parameter(params, "uri"))
        number = getattr(params, "line", None)
        if found is None or type(number) is not int:
            return None
        at = lenses_and_hovers.profiled_line_at(*found, number)
        figures = found[0].figures
        return (
            None
            if at is None or figures is None
            else {**lenses_and_hovers.line_figures_data(figures, at[0]), "stale": at[1]}
        )
