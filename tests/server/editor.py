"""An editor with one project, as far as tests need it, and servers that are ended by force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient


class Editor:
    """An editor with one project, as far as tests need it."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.edits: list[types.WorkspaceEdit] = []
        self.applies = True
        client.feature(types.WORKSPACE_APPLY_EDIT)(lambda params: self._apply(params))
        for refresh in (types.WORKSPACE_CODE_LENS_REFRESH, types.WORKSPACE_INLAY_HINT_REFRESH):
            client.feature(refresh)(lambda params: None)

    def _apply(self, params: types.ApplyWorkspaceEditParams) -> types.ApplyWorkspaceEditResult:
        self.edits.append(params.edit)
        return types.ApplyWorkspaceEditResult(applied=self.applies, failure_reason=None if self.applies else "busy")

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_bytes(text.encode())

    def open(self, name: str, text: str | None = None) -> None:
        given = (self.folder / name).read_bytes().decode() if text is None else text
        self.texts[name], self.versions[name] = given, 1
        item = types.TextDocumentItem(self.uri(name), "python", 1, given)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def type(self, name: str, text: str) -> None:
        self.texts[name], self.versions[name] = text, self.versions[name] + 1
        document = types.VersionedTextDocumentIdentifier(self.versions[name], self.uri(name))
        whole = types.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))

    def save(self, name: str) -> None:
        self.write(name, self.texts[name])
        self.client.text_document_did_save(
            types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(self.uri(name)))
        )

    async def command(self, name: str, *arguments: Any) -> Any:
        params = types.ExecuteCommandParams(name, arguments=list(arguments))
        return await self.client.workspace_execute_command_async(params)

    async def snapshot(self, name: str) -> Any:
        """Return the session's state after the running profile, as plain data."""
        found = await self.client.protocol.send_request_async("roller/profile", {"uri": self.uri(name), "wait": True})
        return _plain(found)

    async def state(self, name: str) -> Any:
        """Return the session's state as it is."""
        return _plain(await self.client.protocol.send_request_async("roller/status", {"uri": self.uri(name)}))

    async def profile(self, name: str) -> Any:
        await self.command("roller.profile", self.uri(name))
        return await self.snapshot(name)

    async def drill(self, name: str, part: str | list[str] = "") -> Any:
        return _plain(await self.command("roller.drill", self.uri(name), part))

    async def lenses(self, name: str) -> list[types.CodeLens]:
        document = types.TextDocumentIdentifier(self.uri(name))
        return list(await self.client.text_document_code_lens_async(types.CodeLensParams(document)) or ())

    async def hover(self, name: str, line: int) -> str:
        at = types.HoverParams(types.TextDocumentIdentifier(self.uri(name)), types.Position(line - 1, 4))
        found = await self.client.text_document_hover_async(at)
        return "" if found is None else found.contents.value

    async def inlays(self, name: str) -> list[types.InlayHint]:
        whole = types.Range(types.Position(0, 0), types.Position(10_000, 0))
        params = types.InlayHintParams(types.TextDocumentIdentifier(self.uri(name)), whole)
        return list(await self.client.text_document_inlay_hint_async(params) or ())

    async def line(self, name: str, line: int) -> Any:
        found = await self.client.protocol.send_request_async("roller/line", {"uri": self.uri(name), "line": line})
        return _plain(found)

    async def until(self, is_so: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait until a condition holds."""
        end = asyncio.get_running_loop().time() + seconds
        while not is_so():
            assert asyncio.get_running_loop().time() < end, "waited for too long"
            await asyncio.sleep(0.05)

    def diagnostics(self, name: str) -> list[types.Diagnostic]:
        return list(self.client.diagnostics.get(self.uri(name), ()))

    def codes(self, name: str) -> set[Any]:
        return {one.code for one in self.diagnostics(name)}


def _plain(value: Any) -> Any:
    """Return what pygls reads as named tuples as objects and lists."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value
