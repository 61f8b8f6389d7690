"""How long a keystroke waits for the language server, at rest and while a profile runs.

A keystroke is the notification of the changed text with a hover request behind it; it is answered when the hover is.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

FileArgument = Annotated[Path, typer.Argument(help="An entry file; it is copied, and the copy is edited.")]
SavesOption = Annotated[int, typer.Option("--saves", min=1, help="Saves, each of which starts a profile.")]
_PAUSE_S = 0.05


def main(file: FileArgument = Path("examples/training/resnet50.py"), saves: SavesOption = 3) -> None:
    """Time keystrokes in an editor with a live profile."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(_time(file.read_text(), Path(folder).resolve(), saves)), indent=2))


async def _time(source: str, folder: Path, saves: int) -> dict[str, Any]:
    from lsprotocol import types
    from pygls.lsp.client import LanguageClient

    client = LanguageClient("benchmark", "1")
    client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: None)
    path = folder / "train.py"
    path.write_text(source)
    uri, root = path.as_uri(), Path(__file__).parents[2]
    os.environ["PYTHONPATH"] = str(root)
    await client.start_io(sys.executable, "-m", "roller.cli.main", "lsp")
    await client.initialize_async(types.InitializeParams(types.ClientCapabilities(), root_uri=folder.as_uri()))
    client.initialized(types.InitializedParams())
    client.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, source))
    )  # fmt: skip
    version = 1

    async def keystroke() -> float:
        nonlocal version
        version += 1
        text = types.TextDocumentContentChangeWholeDocument(source + "#" * version)
        document = types.VersionedTextDocumentIdentifier(version, uri)
        began = time.perf_counter()
        client.text_document_did_change(types.DidChangeTextDocumentParams(document, [text]))
        at = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(version % 40, 4))
        await client.text_document_hover_async(at)
        return time.perf_counter() - began

    async def status() -> str:
        found = await client.protocol.send_request_async("roller/status", {"uri": uri})
        return str(found.status)

    async def until_ready() -> list[float]:
        took = []
        while await status() == "running":
            took.append(await keystroke())
            await asyncio.sleep(_PAUSE_S)
        return took

    profile = types.ExecuteCommandParams("roller.profile", arguments=[uri])
    await client.workspace_execute_command_async(profile)
    began = time.perf_counter()
    first = await until_ready()
    seconds, running = [time.perf_counter() - began], []
    for number in range(saves):
        path.write_text(f"{source}\n# {number}\n")
        began = time.perf_counter()
        client.text_document_did_save(types.DidSaveTextDocumentParams(types.TextDocumentIdentifier(uri)))
        running += await until_ready()
        seconds.append(time.perf_counter() - began)
    rest = []
    for _ in range(200):
        rest.append(await keystroke())
        await asyncio.sleep(0.005)
    await client.shutdown_async(None)
    client.exit(None)
    return {
        "load": os.getloadavg()[0], "at_rest": _summary(rest), "first_profile": _summary(first),
        "later_profiles": _summary(running), "profile_s": [round(x, 2) for x in seconds],
    }  # fmt: skip


def _summary(seconds: list[float]) -> dict[str, float]:
    found = sorted(1e3 * x for x in seconds) or [0.0]
    return {
        "keystrokes": len(seconds), "median_ms": round(statistics.median(found), 2),
        "p95_ms": round(found[int(0.95 * (len(found) - 1))], 2), "worst_ms": round(found[-1], 2),
    }  # fmt: skip
