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

from tests.server.editor import Editor  # noqa: E402
from tests.server.entries import CONVOLUTIONS, NET, edited  # noqa: E402

pytestmark = pytest.mark.slow  # each starts a server, and a process that imports PyTorch
_COMMAND = [sys.executable, "-m", "roller.cli.main", "lsp"]


@pytest_lsp.fixture(config=ClientServerConfig(server_command=_COMMAND))
async def client(lsp_client: LanguageClient, tmp_path: Path) -> Any:
    made = lsp_client.editor = Editor(lsp_client, tmp_path)
    params = types.InitializeParams(client_capabilities("visual-studio-code"), root_uri=tmp_path.as_uri())
    made.initialized = await lsp_client.initialize_session(params)
    yield made
    await lsp_client.shutdown_session()


@pytest.fixture
def editor(client: Any) -> Editor:
    return client.editor


@pytest.mark.asyncio
async def test_no_code_of_a_project_runs_before_a_profile_is_asked_for(editor: Editor) -> None:
    editor.write("train.py", f"open({str(editor.folder / 'ran')!r}, 'w')\n{NET}")
    editor.open("train.py")
    assert await editor.lenses("train.py") == await editor.inlays("train.py") == []
    assert await editor.hover("train.py", 13) == ""
    editor.save("train.py")
    assert await editor.lenses("train.py") == []
    assert not (editor.folder / "ran").exists()
    assert editor.initialized.capabilities.experimental["roller"]["protocol"] == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("source", [NET, CONVOLUTIONS], ids=["layers", "convolutions"])
async def test_five_tasks_and_the_numbers_of_the_command_line(editor: Editor, source: str, cli: Any) -> None:
    editor.write("train.py", source)
    editor.open("train.py")
    found = (await editor.profile("train.py"))["results"]
    profile = found["profile"]["data"]["profile"]
    command = (str(editor.folder / "train.py"), "--device", "a100", "--json")
    code, said, error = cli("profile", *command)
    assert code == 0, error
    (wanted,) = json.loads(said)
    assert profile == wanted
    # T1, T2: the child with the most time, or memory, down to an operator.
    for measure in ("wall_s", "held_bytes"):
        path, sums = [""], profile["iteration_s"] if measure == "wall_s" else profile["total_bytes"]
        while True:
            answer = await editor.drill("train.py", path)
            assert answer[measure] == pytest.approx(sums, rel=1e-9)
            assert sum(row[measure] for row in answer["children"]) == pytest.approx(sums, rel=1e-9)
            largest = max(answer["children"], key=lambda row: row[measure])
            if largest["kind"] not in ("line", "module"):
                break
            path, sums = largest["path"], largest[measure]
        assert largest["kind"] in ("operator", "tensors", "overhead")
    # T3 to T5: weights or activations, where they are equal, and whether larger batches raise the throughput.
    data = found["profile"]["data"]
    assert data["split"]["weights_bytes"] > 0
    assert "balanced_batch" in data
    curve = found["curve"]["data"]
    assert curve["diminishing_from"] is None or curve["diminishing_from"] >= 1
    code, said, error = cli("forecast", *command)
    assert code == 0, error
    (row,) = json.loads(said)
    assert [x["iteration_s"] for x in found["devices"]["data"]] == [row["iteration_s"]]
    assert [x["total_bytes"] for x in found["devices"]["data"]] == [row["memory"]["total_bytes"]]
    code, said, error = cli("whatif", str(editor.folder / "train.py"), "--device", "a100", "--all", "--json")
    assert code == 0, error
    asked = [row for row in json.loads(said) if not row["not_asked"]]
    hints = [row for row in found["hints"]["data"]["hints"] if not row["not_asked"]]
    assert [(x["change"], x["iteration_s"]) for x in hints] == [(x["changes"], x["iteration_us"] / 1e6) for x in asked]
    assert hints
    # What lenses, hints at the ends of lines and the request of a line say beside their texts is exact.
    by_line = {(x["file"], x["line"]): x for x in data["lines"]}
    hints = await editor.inlays("train.py")
    assert hints
    for hint in hints:
        row = by_line["train.py", hint.position.line + 1]
        assert (hint.data["wall_s"], hint.data["held_bytes"]) == (row["wall_s"], row["held_bytes"])
        assert hint.data["label"] == "predicted"
        one = await editor.line("train.py", hint.position.line + 1)
        assert (one["wall_s"], one["held_bytes"]) == (row["wall_s"], row["held_bytes"])
    lenses = await editor.lenses("train.py")
    assert [x.data["iteration_s"] for x in lenses if "iteration_s" in x.data] == [profile["iteration_s"]]
    assert all(" · predicted" in x.command.title and "a100" in x.command.title for x in lenses)


@pytest.mark.asyncio
async def test_edits_move_figures_or_mark_them_stale(editor: Editor) -> None:
    editor.write("train.py", NET)
    editor.open("train.py")
    await editor.profile("train.py")
    before = {hint.position.line: hint.data["wall_s"] for hint in await editor.inlays("train.py")}
    editor.type("train.py", "import math\n\n" + NET)
    moved = await editor.inlays("train.py")
    assert {hint.position.line - 2: hint.data["wall_s"] for hint in moved} == before
    assert not any("stale" in hint.label for hint in moved)
    assert await editor.hover("train.py", 14) == await _hover_of(editor, NET, 12)
    editor.type("train.py", edited(NET, "torch.relu(self.a(x))", "torch.tanh(self.a(x))"))
    assert {hint.position.line + 1 for hint in await editor.inlays("train.py") if "stale" in hint.label} == {12}
    assert "Stale" in await editor.hover("train.py", 12)
    assert "Stale" not in await editor.hover("train.py", 22)
    editor.type(
        "train.py", NET.replace("        return self.b(torch.relu(self.a(x)))\n", "        pass\n        pass\n")
    )
    assert 12 not in {hint.position.line + 1 for hint in await editor.inlays("train.py")}
    # Form feeds and separators of Unicode end no line, for Python or the editor.
    odd = edited(NET, "class Net", 'TEXT = "\x0c\u2028"\n\n\nclass Net')
    editor.type("train.py", odd)
    assert {hint.position.line for hint in await editor.inlays("train.py")} == {x + 3 if x > 12 else x for x in before}


async def _hover_of(editor: Editor, text: str, line: int) -> str:
    editor.type("train.py", text)
    return await editor.hover("train.py", line)


@pytest.mark.asyncio
async def test_saves_profile_again_and_live_can_be_off(editor: Editor) -> None:
    editor.write("train.py", NET)
    editor.open("train.py")
    first = await editor.profile("train.py")
    editor.type("train.py", edited(NET, "batch_size=16", "batch_size=32"))
    editor.save("train.py")
    second = await editor.snapshot("train.py")
    assert second["revision"] > first["revision"]  # a file may be seen while it is written
    assert second["results"]["profile"]["data"]["profile"]["batch"] == 32
    assert (await editor.command("roller.setLive", editor.uri("train.py"), False))["live"] is False
    editor.type("train.py", NET)
    editor.save("train.py")
    third = await editor.snapshot("train.py")
    assert (third["status"], third["stale"]) == ("stale", True)
    assert all(lens.command.title.endswith("· stale") for lens in await editor.lenses("train.py"))
    await editor.command("roller.setLive", editor.uri("train.py"), True)
    fourth = await editor.snapshot("train.py")
    assert (fourth["status"], fourth["stale"]) == ("ready", False)
    await editor.command("roller.setDevice", editor.uri("train.py"), "v100,2xa100")
    fifth = await editor.snapshot("train.py")
    assert [(x["device"], x["devices"]) for x in fifth["results"]["devices"]["data"]] == [("v100", 1), ("a100", 2)]
    assert all("v100" in lens.command.title for lens in await editor.lenses("train.py"))


@pytest.mark.asyncio
async def test_what_is_wrong_is_said_at_its_line(editor: Editor) -> None:
    editor.write("train.py", edited(NET, "def model_provider():", "def other():"))
    editor.open("train.py")
    found = await editor.profile("train.py")
    assert found["status"] == "failed"
    await editor.until(lambda: editor.codes("train.py") == {"step"})
    assert "model_provider" in editor.diagnostics("train.py")[0].message
    broken = edited(NET, "self.head(self.blocks(x))", "self.head(self.blocks(x[0, 0]))")
    editor.type("train.py", broken)
    editor.save("train.py")
    assert (await editor.snapshot("train.py"))["status"] == "failed"
    editor.type("train.py", NET)
    editor.save("train.py")
    assert (await editor.snapshot("train.py"))["status"] == "ready"
    await editor.until(lambda: editor.codes("train.py") == {"hint"})
    hints = [one for one in editor.diagnostics("train.py") if one.code == "hint"]
    assert all("saves" in one.message and "predicted" in one.message for one in hints)
    kinds = {types.DiagnosticSeverity.Information, types.DiagnosticSeverity.Hint}
    assert {one.severity for one in hints} <= kinds
    (editor.folder / "train.py").rename(editor.folder / "moved.py")
    await editor.until(lambda: editor.codes("train.py") == {"step"})
    assert "got none. Name one that can be read" in editor.diagnostics("train.py")[0].message
    (editor.folder / "moved.py").rename(editor.folder / "train.py")
    await editor.until(lambda: editor.codes("train.py") == {"hint"})


@pytest.mark.asyncio
async def test_out_of_memory_is_said_at_its_line_before_anything_runs(editor: Editor) -> None:
    wide = "self.head(self.blocks(x.repeat_interleave(4096, 0))).unflatten(0, (-1, 4096)).mean(1)"
    net = edited(NET, "self.head(self.blocks(x))", wide)
    editor.write("train.py", edited(net, "batch_size=16", "batch_size=100_000"))
    editor.open("train.py")
    found = await editor.profile("train.py")
    assert found["error"] is None, found["error"]
    fit = found["results"]["fit"]["data"]
    (said,) = [one for one in editor.diagnostics("train.py") if one.code == "out-of-memory"]
    assert said.severity == types.DiagnosticSeverity.Error
    assert fit["line"] == f"train.py:{said.range.start.line + 1}"
    assert "tried to allocate" in said.message
    assert f"largest batch that fits as it is: {fit['largest']}." in said.message
    assert [x["change"] for x in fit["remedies"]] == ["checkpoint=yes", "amp=bf16"][-len(fit["remedies"]) :]
    answer = await editor.command("roller.setBatch", editor.uri("train.py"), fit["largest"])
    assert (answer["before"], answer["batch"]) == (100_000, fit["largest"])
    (change,) = editor.edits[-1].document_changes
    (edit,) = change.edits
    assert (change.text_document.version, edit.new_text) == (editor.versions["train.py"], str(fit["largest"]))
    line = editor.texts["train.py"].split("\n")[edit.range.start.line].encode("utf-16-le")  # behind what is no ASCII
    assert line[2 * edit.range.start.character : 2 * edit.range.end.character].decode("utf-16-le") == "100_000"
    editor.type("train.py", edited(net, "batch_size=16", f"batch_size={fit['largest']}"))
    editor.save("train.py")
    assert (await editor.snapshot("train.py"))["results"]["profile"]["data"]["fits"] is True
    await editor.until(lambda: "out-of-memory" not in editor.codes("train.py"))


@pytest.mark.asyncio
async def test_requests_are_answered_while_a_profile_runs(editor: Editor) -> None:
    editor.write("train.py", NET)
    editor.open("train.py")
    await editor.profile("train.py")
    editor.type("train.py", edited(NET, "batch_size=16", "batch_size=64"))
    editor.save("train.py")
    answered = 0
    while (await editor.state("train.py"))["status"] != "ready":
        editor.type("train.py", editor.texts["train.py"] + "\n")
        assert await editor.hover("train.py", 12)
        answered += 1
    assert answered > 3


@pytest.mark.asyncio
async def test_refusals_are_in_words(editor: Editor) -> None:
    editor.write("script.py", "print('trains')\n")
    editor.write("train.py", NET)
    uri = editor.uri("train.py")
    for arguments, words in (
        (("roller.profile", editor.uri("script.py")), "runScripts"),
        (("roller.profile", "untitled:Untitled-1"), "Save it first"),
        (("roller.profile", editor.uri("absent.py")), "expected a file"),
        (("roller.profile", 7), "roller.profile: uri: expected the URI of an entry file, got 7"),
        (("roller.setBatch", uri, 8), "expected a file with a profile"),
    ):
        await _is_refused(editor, arguments, words)
    await editor.profile("train.py")
    for arguments, words in (
        (("roller.setBatch", uri, 0), "roller.setBatch: batch: expected a whole number"),
        (("roller.setBatch", uri, True), "whole number"),
        (("roller.setDevice", uri, "a10o"), "roller.setDevice: devices: expected the name of a device"),
        (("roller.setDevice", uri, str(editor.folder / "own.yaml")), "name of a device"),
        (("roller.setLive", uri, "yes"), "true or false"),
        (("roller.drill", uri, "none"), "none: expected a module or a line (file:line)"),
        (("roller.showPage", uri, "evil.example:80"), "127.0.0.1"),
    ):
        await _is_refused(editor, arguments, words)
    editor.applies = False
    await _is_refused(editor, ("roller.setBatch", uri, 8), "busy")


async def _is_refused(editor: Editor, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(JsonRpcException) as refused:
        await editor.command(*arguments)
    assert words in str(refused.value), str(refused.value)
    assert "Traceback" not in str(refused.value)


@pytest.mark.asyncio
async def test_a_project_of_2000_files(editor: Editor) -> None:
    editor.write("pyproject.toml", "")
    (editor.folder / "parts").mkdir()
    for number in range(2000):
        editor.write(f"parts/part{number}.py", f"def act(x):\n    return x * {number}\n")
    source = edited(NET, "from torch import nn\n", "from torch import nn\n\nfrom parts.part7 import act\n")
    editor.write("train.py", edited(source, "torch.relu(self.a(x))", "act(self.a(x))"))
    editor.open("train.py")
    editor.open("parts/part7.py")
    editor.open("parts/part8.py")
    await editor.profile("train.py")
    assert [hint.position.line for hint in await editor.inlays("parts/part7.py")] == [1]
    assert await editor.inlays("parts/part8.py") == []
    editor.type("parts/part7.py", "import torch\n\n\ndef act(x):\n    return torch.relu(x)\n")
    editor.save("parts/part7.py")
    await editor.snapshot("train.py")
    assert [hint.position.line for hint in await editor.inlays("parts/part7.py")] == [4]
    again = await editor.profile("parts/part7.py")  # of the entry file that it belongs to
    assert again["entry"] == "train.py"


@pytest.mark.asyncio
async def test_the_page_and_the_editor_share_a_session(editor: Editor) -> None:
    websockets = pytest.importorskip("websockets")
    pytest.importorskip("uvicorn")
    editor.write("train.py", NET)
    editor.open("train.py")
    first = await editor.profile("train.py")
    address = (await editor.command("roller.showPage", editor.uri("train.py")))["address"]
    again = await editor.command("roller.showPage", editor.uri("train.py"), "127.0.0.1:1")
    assert again == {"address": address}
    host, _, token = address.removeprefix("http://").partition("/?token=")
    async with websockets.connect(
        f"ws://{host}/socket?token={token}", origin=f"http://{host}", max_size=None, proxy=None
    ) as page:
        await page.send(json.dumps({"type": "hello", "version": 1}))
        hello, state = json.loads(await page.recv()), json.loads(await page.recv())
        assert (hello["entry"], state["results"]) == ("train.py", first["results"])
        options = {**state["options"], "devices": [["v100", 1]]}
        await page.send(json.dumps({"type": "options", "options": options}))
        while (await editor.snapshot("train.py"))["options"] != options:
            await asyncio.sleep(0.05)
        await editor.snapshot("train.py")
        assert all("v100" in lens.command.title for lens in await editor.lenses("train.py"))
        await editor.command("roller.setDevice", editor.uri("train.py"), "a100")
        while json.loads(await page.recv()).get("options", options)["devices"] != [["a100", 1]]:
            pass


@pytest.mark.asyncio
async def test_settings_that_are_wrong_are_told(editor: Editor) -> None:
    editor.write("train.py", NET)
    params = types.DidChangeConfigurationParams({"roller": {"device": "h10o"}})
    editor.client.workspace_did_change_configuration(params)
    await _is_refused(editor, ("roller.profile", editor.uri("train.py")), "h100")
    await editor.until(lambda: any("h100" in said.message for said in editor.client.messages))
