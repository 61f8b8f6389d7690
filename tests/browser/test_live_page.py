"""The live page in a real browser, over a real server: five tasks on five models, and all else on a small one.

Needs Chromium, Node and ``make browser``. ``ROLLER_SCREENSHOTS`` names a folder that keeps pictures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from math import fsum
from pathlib import Path

import pytest

from tests.browser.test_browser import CHROMIUM, HERE, ROOT, pytestmark  # noqa: F401

pytest.importorskip("torch")
pytest.importorskip("uvicorn")
#: Bytes of all files of the page, and milliseconds to its first paint and of a redraw of the dial.
MOST_BYTES, FIRST_PAINT_MS, REDRAW_MS, EDIT_MS = 700_000, 1000, 200, 100
DEVICE = ("--device", "rtx3090")
MODELS = ("resnet50", "transformer", "gnmt", "vit", "gan")
ENTRY = '''"""Ein kleines Modell: letters beyond ASCII before the batch, 𝒙 too."""

import torch
from net import Block
from torch import nn


def model_provider():
    return nn.Sequential(Block(512), Block(512), nn.Linear(512, 1000))


def input_provider(*, batch_size=16):
    return torch.randn(batch_size, 512), torch.randint(0, 1000, (batch_size,))


def iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step
'''
NET = """from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())
"""


@contextmanager
def served(file: Path, *options: str):
    """Run a server of a file; yield the address of its page."""
    words = [sys.executable, "-m", "roller.cli.main", "serve", str(file), "--no-open", *(options or DEVICE)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def driven(file: Path, script: str, *options: str, seconds: float = 560):
    """Return what a script found on the page of a file, which made no error and asked for nothing else."""
    with served(file, *options) as url:
        done = subprocess.run(
            ["node", HERE / "live_page.js", url, file, HERE / script],
            env={**os.environ, "ROLLER_CHROMIUM": str(CHROMIUM)}, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["errors"], found["foreign"]) == ([], [])
    assert 0 < found["bytes"] < MOST_BYTES
    return {"painted": [], **found["found"]}


def told_by_cli(*words: str):
    done = subprocess.run(
        [sys.executable, "-m", "roller.cli.main", *words, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def heaviest_way(profile, place):
    """Return nodes on the way to the heaviest leaf: of siblings the heaviest, single ones gone through at once."""
    nodes = profile["nodes"]
    value = [
        fsum(part[0] for part in n.get("seconds", {}).values()) if place == 0 else sum(n.get("held_bytes", {}).values())
        for n in nodes
    ]
    children = [[] for _ in nodes]
    for number, node in enumerate(nodes[1:], 1):
        children[node["parent"]].append(number)
    way, at = [], 0
    while children[at]:
        while len(children[at]) == 1 and children[children[at][0]]:
            (at,) = children[at]
        at = min(children[at], key=lambda n: (-value[n], n))
        way.append((at, value[at]))
    return way


@pytest.mark.parametrize("model", MODELS)
def test_the_five_tasks_by_mouse_and_by_keys(model, tmp_path):
    file = tmp_path / f"{model}.py"
    file.write_bytes((ROOT / "examples" / "training" / f"{model}.py").read_bytes())
    found = driven(file, "live_tasks.js")
    told, curve = found["profile"], found["curve"]
    for place, by in enumerate(("time", "memory")):
        way = heaviest_way(told["profile"], place)
        for how in ("mouse", "keys"):
            shown = [(row["node"], row[("time", "bytes")[place]]) for row in found["tree"][f"{how} {by}"]]
            assert shown == way, (how, by)
    assert found["escaped"][-1] == found["deepest"][-2]
    split = told["split"]
    assert found["split"]["values"] == [split["weights_bytes"], split["activations_bytes"]]
    assert re.fullmatch(r"Weights take [\d.]+ \w+, activations [\d.]+ \w+\.", found["split"]["said"])
    assert found["T4"] == told["balanced_batch"] and found["T5"] == curve["diminishing_from"]
    assert all(found[f"{task} {how}"] for task in ("T4", "T5") if found[task] for how in ("mouse", "keys"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a small model's entry file, and what the page showed and did."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "net.py").write_text(NET)
    file = folder / "train.py"
    file.write_text(ENTRY, encoding="utf-8")
    return file, driven(file, "live_whole.js")


def test_its_numbers_are_those_of_the_command_line(small):
    file, found = small
    (profile,) = told_by_cli("profile", str(file), "--device", "rtx3090")
    shown = found["values"]
    expected = [profile["iteration_s"], profile["throughput_per_s"], profile["total_bytes"]]
    assert [shown[name] for name in ("step", "throughput", "memory")] == expected
    (forecast,) = told_by_cli("forecast", str(file), "--device", "rtx3090")
    step = found["device"]["step"]
    shown = [float(step[x]) for x in ("value", "lower", "upper")]
    assert shown == [forecast[f"{x}_s"] for x in ("iteration", "lower", "upper")]
    assert float(found["device"]["throughput"]["value"]) == forecast["throughput_per_s"]
    assert int(found["device"]["memory"]["value"]) == forecast["memory"]["total_bytes"]
    hints = [row for row in told_by_cli("whatif", str(file), "--device", "rtx3090", "--all") if not row["not_asked"]]
    asked = [row for row in found["hints"] if row["to"] is not None]
    assert [row["change"] for row in asked] == [row["changes"] for row in hints]
    assert [row["to"] for row in asked] == [row["iteration_us"] / 1e6 for row in hints]
    deltas = [None if row["in_place"] else (row["iteration_us"] - row["baseline_us"]) / 1e6 for row in hints]
    assert [row["delta"] for row in asked] == deltas, "without a number where the step has the change already"
    assert [row["hardly"] for row in asked] == [row["hardly_anything"] for row in hints]


def test_every_number_says_where_it_comes_from(small):
    _, found = small
    numbers = found["numbers"]
    assert len(numbers) > 80 and {n.get("label") for n in numbers} == {"predicted", "recorded"}
    assert all(float(n["value"]) == float(n["value"]) for n in numbers)


def test_a_part_is_linked_in_both_bars_the_list_and_the_source(small):
    _, found = small
    pieces, rows, lines = found["linked"]
    assert 1 <= pieces <= 2 and (rows, lines) == (1, 1)


def test_the_dial_is_dragged(small):
    _, found = small
    assert len(found["redraws"]) >= 60 and max(found["redraws"]) < REDRAW_MS
    times = [at for at, _ in found["edits"]]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) > 5 and min(gaps) > EDIT_MS - 10, "at most one edit in 100 ms; what observes them is 10 ms off"
    batches = [batch for batch, _ in found["dragged"]]
    assert batches == sorted(set(batches)), "the pointer may leave the dial"
    steps = [step for _, step in found["dragged"]]
    assert steps == sorted(set(steps)), "the step is redrawn with the batch"
    assert found["released"] and found["after"] == batches[-1]


def test_one_undo_restores_the_bytes_and_keys_turn_the_dial(small):
    file, found = small
    assert found["undone"] == "16" and file.read_text(encoding="utf-8") == ENTRY
    assert found["keyed"] == 33 and found["escaped"] == ["16", True]


def test_of_two_saves_the_second_is_told(small):
    _, found = small
    assert found["saves"] == [33] and found["sourceFollows"] == "33"
    told = found["differenceTold"]
    before = told["before"]
    assert found["difference"] == [before["iteration_s"], told["delta_s"], before["total_bytes"], told["delta_bytes"]]


def test_a_cut_connection_comes_back_and_a_second_client_sees_the_same(small):
    _, found = small
    assert found["cutKeeps"] == found["values"]["step"]
    assert found["regained"] == {"sockets": 2, "same": True}
    assert found["second"] == found["values"] and not found["sideways"]


def test_switches_redraw(small):
    _, found = small
    half = found["half"]
    assert half["amp"] == "bf16" and [half["step"], half["memory"]] == half["told"]
    assert half["step"] != found["values"]["step"]
    rows = {row["change"]: row for row in found["hints"]}
    assert found["changed"] == rows[found["hint"]]["to"]
    assert found["devices"] == ["rtx3090", "h100"]
    assert found["other"]["step"] == found["other"]["told"] != found["values"]["step"]


def test_an_error_opens_its_line(small):
    _, found = small
    assert re.search(r"train\.py:\d+", found["failure"]) and "z" in found["failure"]
    line = next(n for n, text in enumerate(ENTRY.splitlines(), 1) if "cross_entropy" in text)
    assert found["place"].startswith(f"Line {line}") and found["mended"] == 0


def test_it_is_accessible_and_quickly_there(small):
    _, found = small
    assert (found["axe"], found["secondAxe"], found["errors"]) == ([], [], [])
    assert min(found["painted"]) < FIRST_PAINT_MS, "the quickest of some openings: others load the machine"
