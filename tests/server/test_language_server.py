"""The language server through its protocol, as pytest-lsp speaks it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pygls")
pytest_lsp = pytest.importorskip("pytest_lsp")

from lsprotocol import types  # noqa: E402 - after what skips
from pygls.exceptions import JsonRpcException  # noqa: E402
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities  # noqa: E402

from tests.server.entries import NET, edited  # noqa: E402

_COMMAND = [sys.executable, "-m", "roller.cli.main", "lsp"]
_ROOT = Path(__file__).parents[2]


class Editor:
    """An editor with one project, as far as tests need it."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.texts: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self.edits: list[types.WorkspaceEdit] = []
        self.applies = True
        client.feature(types.WORKSPACE_APPLY_EDIT)(self._apply)

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

    async def profile(self, name: str) -> Any:
        await self.command("roller.profile", self.uri(name))
        return await self.snapshot(name)

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

    async def until(self, is_so: Any, seconds: float = 60.0) -> None:
        """Wait until a condition holds."""
        end = asyncio.get_running_loop().time() + seconds
        while not is_so():
            assert asyncio.get_running_loop().time() < end, "waited for too long"
            await asyncio.sleep(0.05)

    def diagnostics(self, name: str) -> list[types.Diagnostic]:
        return list(self.client.diagnostics.get(self.uri(name), ()))


def _plain(value: Any) -> Any:
    """Return what pygls reads as named tuples as objects and lists."""
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


@pytest_lsp.fixture(config=ClientServerConfig(server_command=_COMMAND))
async def editor(lsp_client: LanguageClient, tmp_path: Path) -> Any:
    made = Editor(lsp_client, tmp_path)
    params = types.InitializeParams(client_capabilities("visual-studio-code"), root_uri=tmp_path.as_uri())
    made.initialized = await lsp_client.initialize_session(params)
    yield made
    await lsp_client.shutdown_session()


@pytest.mark.asyncio
async def test_a_profile_in_the_editor(editor: Editor) -> None:
    editor.write("train.py", NET)
    editor.open("train.py")
    assert await editor.lenses("train.py") == []  # no code runs because a file is opened
    found = await editor.profile("train.py")
    print(json.dumps(found)[:300])
    for lens in await editor.lenses("train.py"):
        print(lens.range.start, lens.command, lens.data)
    for hint in await editor.inlays("train.py"):
        print(hint.position, hint.label)
    print(await editor.hover("train.py", 12))
    for d in editor.diagnostics("train.py"): print(d.range, d.severity, d.message)
    print(await editor.line("train.py", 12))
