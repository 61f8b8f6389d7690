"""Five tasks on five models through the language server, and its numbers beside those of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pygls")
pytest_lsp = pytest.importorskip("pytest_lsp")

from lsprotocol import types  # noqa: E402
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities  # noqa: E402 - after what skips

from tests.server.editor import Editor  # noqa: E402
from tests.server.entries import CONVOLUTIONS, NET, edited  # noqa: E402

pytestmark = pytest.mark.slow  # each starts a server, and a process that imports PyTorch
_ROOT = Path(__file__).parents[2]
_MODELS = ("resnet50", "transformer", "gnmt", "vit", "gan")
#: Runs the verbs that it is told, one a line as JSON, in one process.
_ASKED = """
import contextlib, io, json, sys
from roller.cli.main import main
for line in sys.stdin:
    said, code = io.StringIO(), 0
    with contextlib.redirect_stdout(said):
        try:
            main(json.loads(line))
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


class CommandLine:
    """A process of its own that runs verbs of the command line, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ASKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )  # fmt: skip

    def __call__(self, *words: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*words, "--json"]) + "\n")
        self._process.stdin.flush()
        code, said = json.loads(self._process.stdout.readline())
        assert said, (words, code)
        return json.loads(said)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def told() -> Iterator[CommandLine]:
    made = CommandLine()
    yield made
    made.close()


@pytest_lsp.fixture(config=ClientServerConfig(server_command=[sys.executable, "-m", "roller.cli.main", "lsp"]))
async def client(lsp_client: LanguageClient, tmp_path: Path) -> Any:
    lsp_client.editor = Editor(lsp_client, tmp_path)
    params = types.InitializeParams(client_capabilities("visual-studio-code"), root_uri=tmp_path.as_uri())
    await lsp_client.initialize_session(params)
    yield lsp_client
    await lsp_client.shutdown_session()


@pytest.fixture
def editor(client: Any) -> Editor:
    return client.editor


async def _configured(editor: Editor, **settings: Any) -> None:
    editor.client.set_configuration({"roller": settings})
    editor.client.workspace_did_change_configuration(types.DidChangeConfigurationParams({"roller": settings}))


async def _same_numbers(editor: Editor, told: CommandLine, name: str, *words: str) -> Any:
    """Profile a file; hold its figures against those of three verbs, and what is shown against the figures."""
    editor.open(name)
    found = await editor.profile(name)
    assert found["error"] is None, found["error"]
    results = {stage: one["data"] for stage, one in found["results"].items()}
    profile, command = results["profile"]["profile"], (str(editor.folder / name), *words)
    assert [profile] == told("profile", *command)
    rows = told("forecast", *command)
    names = ("device", "devices", "batch", "iteration_s", "lower_s", "upper_s", "throughput_per_s")
    assert [[row[n] for n in names] for row in results["devices"]] == [[row[n] for n in names] for row in rows]
    memory = [(row["memory"]["total_bytes"], row["memory"]["fits"]) for row in rows]
    assert [(row["total_bytes"], row["fits"]) for row in results["devices"]] == memory
    await _shown(editor, name, results)
    return results, command


async def _shown(editor: Editor, name: str, results: Any) -> None:
    """Hold what lenses, inlay hints, hovers and diagnostics carry against the profile's lines, without rounding."""
    data, profile = results["profile"], results["profile"]["profile"]
    by_line = {row["line"]: row for row in data["lines"] if row["file"] == name}
    inlays = await editor.inlays(name)
    assert {hint.position.line + 1 for hint in inlays} == {
        n for n, row in by_line.items() if row["wall_s"] or row["held_bytes"] or row["registered_bytes"]
    }
    for hint in inlays:
        number = hint.position.line + 1
        row, one = by_line[number], await editor.line(name, number)
        for key in ("wall_s", "held_bytes", "registered_bytes"):
            assert hint.data[key] == one[key] == row[key], (number, key)
        instances = [{key: x[key] for key in ("module", "wall_s", "held_bytes")} for x in row["instances"]]
        assert hint.data["instances"] == one["instances"] == instances, number
        assert await editor.hover(name, number)
    lenses = await editor.lenses(name)
    (step,) = [lens.data for lens in lenses if "iteration_s" in lens.data]
    for key in ("iteration_s", "lower_s", "upper_s", "total_bytes", "capacity_bytes", "batch", "device", "devices"):
        assert step[key] == profile[key], key
    hints = results["hints"].get("hints", ())
    helps = [x for x in hints if not x["not_asked"] and not x["hardly_anything"] and x["delta_s"] < 0]
    await editor.until(lambda: sum(x.code == "hint" for x in editor.diagnostics(name)) == len(helps))
    carried = [x.data for x in editor.diagnostics(name) if x.code == "hint"]
    assert sorted((x["change"], x["iteration_s"], x["delta_s"]) for x in carried) == sorted(
        (x["change"], x["iteration_s"], x["delta_s"]) for x in helps
    )


def _same_hints(results: Any, rows: Any) -> None:
    hints = [row for row in results["hints"]["hints"] if not row["not_asked"]]
    asked = [row for row in rows if not row["not_asked"]]
    assert hints
    assert [(x["change"], x["iteration_s"]) for x in hints] == [(x["changes"], x["iteration_us"] / 1e6) for x in asked]
    assert [x["delta_s"] for x in hints] == [(x["iteration_us"] - x["baseline_us"]) / 1e6 for x in asked]


@pytest.mark.asyncio
@pytest.mark.parametrize("model", _MODELS)
async def test_five_tasks_on_five_models(editor: Editor, told: CommandLine, model: str) -> None:
    name = f"{model}.py"
    (editor.folder / name).write_bytes((_ROOT / "examples" / "training" / name).read_bytes())
    results, command = await _same_numbers(editor, told, name, "--device", "a100")
    _same_hints(results, told("whatif", *command, "--all"))
    data, curve = results["profile"], results["curve"]
    profile = data["profile"]
    for measure, whole in (("wall_s", profile["iteration_s"]), ("held_bytes", profile["total_bytes"])):  # T1, T2
        path: Any = ""
        while True:
            answer = await editor.drill(name, path)
            assert answer[measure] == pytest.approx(whole, rel=1e-9)
            if not answer["children"]:
                break
            assert sum(row[measure] for row in answer["children"]) == pytest.approx(whole, rel=1e-9)
            heaviest = max(answer["children"], key=lambda row: row[measure])
            path, whole = heaviest["path"], heaviest[measure]
        assert heaviest["kind"] not in ("line", "module")
    split = data["split"]  # T3
    assert split["weights_bytes"] > 0
    assert split["activations_bytes"] > 0
    if data["balanced_batch"] is not None:  # T4: where the activations of as many samples weigh what the weights do
        per_sample = split["activations_bytes"] / profile["batch"]
        assert data["balanced_batch"] == pytest.approx(split["weights_bytes"] / per_sample, rel=0.2)
    (point,) = [one for one in curve["curve"]["computed"] if one["batch"] == profile["batch"]]  # T5
    assert point["iteration_s"] == pytest.approx(profile["iteration_s"], rel=1e-12)  # it is summed in another order
    assert curve["diminishing_from"] is None or curve["diminishing_from"] >= 1
    batch = max(1, round(data["balanced_batch"] or profile["batch"]))
    answer = await editor.command("roller.setBatch", editor.uri(name), batch)
    assert (answer["applied"], answer["batch"], answer["before"]) == (True, batch, profile["batch"])


_WIDE = "self.head(self.blocks(x.repeat_interleave(4096, 0))).unflatten(0, (-1, 4096)).mean(1)"
_SCRIPT = """import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
_CASES = {
    "a processor": (CONVOLUTIONS, {"device": "cpu-avx2"}, ("--device", "cpu-avx2")),
    "too large": (
        edited(edited(NET, "self.head(self.blocks(x))", _WIDE), "batch_size=16", "batch_size=100_000"),
        {"device": "v100"}, ("--device", "v100"),
    ),
    "checkpointing": (NET, {"device": "v100", "checkpoint": True}, ("--device", "v100", "--checkpoint", "yes")),
    "bf16": (CONVOLUTIONS, {"device": "h100", "amp": "bf16"}, ("--device", "h100", "--amp", "bf16")),
    "another batch": (NET, {"device": "a100", "batch": 48}, ("--device", "a100", "--batch", "48")),
    "a script": (_SCRIPT, {"device": "a100", "runScripts": True}, ("--device", "a100", "--yes")),
    "several devices": (NET, {"device": "4xa100"}, ("--device", "4xa100")),
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("case", _CASES)
async def test_numbers_are_those_of_the_command_line(editor: Editor, told: CommandLine, case: str) -> None:
    source, settings, words = _CASES[case]
    editor.write("train.py", source)
    await _configured(editor, **settings)
    await _same_numbers(editor, told, "train.py", *words)
