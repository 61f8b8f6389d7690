"""Switches of the live page, prices, comparisons and conflicts, in a real browser over a real server."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from tests.browser.test_browser import pytestmark  # noqa: F401 - the marks of the other file hold here
from tests.browser.test_live_page import DEVICE, ENTRY, NET, driven, told_by_cli
from tests.server.entries import edited

PRICES = "{currency: EUR, devices: {rtx3090: {per_hour: 0.5, source: a list, date: 2020-01-31}}}"


def project(folder, entry=ENTRY):
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(entry, encoding="utf-8")
    return folder / "train.py"


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """Return the entry file of a small project, and what its page showed while things were switched."""
    folder = tmp_path_factory.mktemp("switches")
    blocks = edited(
        ENTRY, "Block(512), Block(512)", "nn.Sequential(Block(512), Block(512))"
    )  # that repeat: checkpoints
    file = project(folder, blocks)
    (folder / "prices.yaml").write_text(PRICES)
    for words in (["init", "-q"], ["add", "train.py", "net.py"], ["commit", "-q", "-m", "first"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    return file, driven(file, "live_switches.js", *DEVICE, "--prices", str(folder / "prices.yaml"))


def by_lines(found, batch):
    """Return bytes by kind as the lines of the tensors over the batch have them."""
    sums = {}
    for node, line in zip(found["told"]["profile"]["nodes"], found["curve"]["node_lines"], strict=True):
        if node["kind"] == "tensors" and node.get("held_bytes"):
            ((kind, _),) = node["held_bytes"].items()
            sums[kind] = sums.get(kind, 0.0) + line[2] * batch + line[3]
    return sums


def test_memory_by_kind_follows_the_dial(switched):
    _, found = switched
    kinds, root = found["kinds"], found["told"]["profile"]["nodes"][0]["held_bytes"]
    held = {kind.replace("_", " "): size for kind, size in root.items() if size}
    assert kinds["before"] == kinds["after"] == held
    assert kinds["marks"] == ["at batch 16"] * 2, "devices and hints are not those of the batch that is dialled"
    assert kinds["batch"] == 256 and "at batch 256" in kinds["title"]
    assert sum(kinds["dialled"].values()) == pytest.approx(kinds["total"], rel=1e-12)
    expected = {kind.replace("_", " "): size for kind, size in by_lines(found, 256).items()}
    for kind in ("parameter", "activation", "input"):
        if kind in held:
            assert kinds["dialled"][kind] == pytest.approx(expected[kind], rel=0.02), kind
    assert kinds["dialled"]["parameter"] == pytest.approx(held["parameter"], rel=0.02), "weights stay"
    assert kinds["splitDialled"] == [kinds["dialled"]["parameter"], kinds["dialled"].get("activation", 0)]
    assert kinds["dialled"] != kinds["before"]


def test_checkpointing_redraws_time_and_memory(switched):
    file, found = switched
    shown = found["checkpoint"]
    (profile,) = told_by_cli("profile", str(file), *DEVICE, "--checkpoint", "yes")
    assert [shown["step"], shown["memory"]] == shown["told"] == [profile["iteration_s"], profile["total_bytes"]]
    assert shown["blocks"] == profile["checkpoint"] != [] and "checkpoints" in shown["says"]
    assert shown["step"] != found["values"]["step"] and shown["off"] == found["values"]


def test_devices_and_their_link_redraw_time_and_memory(switched):
    file, found = switched
    for shown, rate in ((found["four"], "300000000000"), (found["slow"], "1250000000")):
        assert shown["changes"] == [f"ddp:devices=4,bandwidth={rate}"]
        (answer,) = told_by_cli("whatif", str(file), *DEVICE, "--do", shown["changes"][0])
        assert shown["told"]["iteration_us"] == answer["iteration_us"]
    assert found["slow"]["told"]["iteration_us"] > found["four"]["told"]["iteration_us"]
    assert found["four"]["memory"] == found["four"]["told"]["total_bytes"] > found["told"]["profile"]["total_bytes"]


def test_a_run_has_hours_and_a_price(switched):
    _, found = switched
    run = found["run"]
    hours = 3 * 1_000_000 / float(run["throughput"][0]["value"]) / 3600
    assert float(run["the run"][0]["value"]) == hours
    assert float(run["costs"][0]["value"]) == hours * 0.5 and run["costs"][0]["unit"] == "EUR"
    ends = [float(run["costs"][0][end]) for end in ("lower", "upper")]
    profile = found["told"]["profile"]
    assert ends == [
        pytest.approx(hours * 0.5 * profile[end] / profile["iteration_s"], rel=1e-12) for end in ("lower_s", "upper_s")
    ]
    assert run["price"][0]["interval"] == "exact" and float(run["price"][0]["value"]) == 0.5
    assert "2020-01-31" in found["old"][0] and "days old" in found["old"][0]


def test_the_difference_to_git_head_is_that_of_the_command_line(switched):
    file, found = switched
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("1000)", "2000)"), encoding="utf-8")
    try:
        (told,) = told_by_cli("profile", str(file), *DEVICE, "--against", "git:HEAD")
    finally:
        file.write_text(text, encoding="utf-8")
    difference, shown = told["difference"], found["headShown"]
    assert found["pressed"] and found["head"]["delta_s"] == difference["delta_s"] == found["last"]["delta_s"]
    assert shown["sums"] == [
        difference["before"]["iteration_s"], difference["delta_s"], difference["before"]["total_bytes"],
        difference["delta_bytes"],
    ]  # fmt: skip
    rows = {row["name"]: row["delta_s"] or row["made_delta_s"] for row in difference["lines"]}
    assert shown["rows"] and all(rows[name] == delta for name, delta in shown["rows"] if ":" in name)


def test_a_conflict_of_two_clients_is_told_and_settled(switched):
    file, found = switched
    assert "train.py was changed on disk, and here." in found["conflict"]
    assert found["refused"], "a save on an older text writes nothing"
    assert found["taken"] == {"hidden": True, "dirty": ""}
    assert found["entryStays"] == {"disk": True, "dirty": "", "net": False}
    assert "nn.Sequential(Block(512), Block(512))" in file.read_text(encoding="utf-8")


def test_a_constant_is_adopted_as_the_batch(tmp_path):
    entry = edited(ENTRY, "batch_size=16", "batch_size=int(SIZE)").replace(
        "from torch import nn\n", "from torch import nn\n\nSIZE = 16\n"
    )
    found = driven(project(tmp_path, entry), "live_candidate.js")
    assert "writes no literal" in found["says"] and found["before"] == []
    assert found["adopted"] == ["16"] and "writes no literal" not in found["silent"]
    assert found["undone"] == ["8", "128", "16"], "each undo is of one turn of the dial"
    assert found["sizes"] == [[batch, batch, int(batch), True] for batch in ("128", "8", "4096")]


def test_a_batch_by_option_is_said_and_can_be_left(tmp_path):
    file = project(tmp_path)
    found = driven(file, "live_option.js", *DEVICE, "--batch", "24")
    assert found["says"].startswith("Batch 24 is set for this page alone, the file has 16.")
    (profile,) = told_by_cli("profile", str(file), *DEVICE, "--batch", "24")
    assert found["first"]["batch"] == 24
    assert (found["first"]["step"], found["first"]["memory"]) == (profile["iteration_s"], profile["total_bytes"])
    assert found["untouched"] and found["back"] == 16 and found["left"] == 0
