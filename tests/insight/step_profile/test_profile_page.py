"""The page of a profile holds its numbers to the last digit, and is never larger than 1.5 MB."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from roller.insight.step_profile.difference import difference
from roller.insight.step_profile.hints_difference_json import hints_and_difference_data
from roller.insight.step_profile.node import Node, Seconds
from roller.insight.step_profile.profile_html_page import merge_small_nodes, profile_html, profile_page_data
from roller.insight.step_profile.profile_json import profile_to_json_data
from roller.insight.step_profile.step_profile import MemoryPoint, StepProfile
from roller.page import html_page
from roller.page.html_page import MOST_BYTES
from tests.insight.step_profile.profiles import large_profile, small_profile
from tests.report.pages import data_of


@pytest.fixture(scope="module")
def shown():
    profile = small_profile()
    return profile, data_of(profile_html(profile))


def test_every_node_has_its_numbers(shown):
    profile, data = shown
    nodes, names, walked = data["nodes"], data["names"], list(profile.root.walk())
    assert [names[n] for n in nodes["name"]] == [node.name for node in walked]
    assert [names[n] for n in nodes["kind"]] == [node.kind for node in walked]
    assert nodes["wall_s"].tolist() == [node.wall_s for node in walked]
    assert nodes["device_s"].tolist() == [node.device_s for node in walked]
    assert nodes["held_bytes"].tolist() == [node.total_held_bytes for node in walked]
    assert nodes["parent"].tolist() == [row["parent"] for row in profile_to_json_data(profile)["nodes"]]
    for kind, column in nodes["held"].items():
        held = [node.held_bytes.get(kind, 0) for node in walked]
        assert {int(n): v for n, v in zip(column["row"], column["value"], strict=True)} == {
            n: v for n, v in enumerate(held) if v
        }


def test_the_heading_is_that_of_the_json(shown):
    profile, data = shown
    saved = profile_to_json_data(profile)
    same = ("name", "source", "device", "iteration_s", "lower_s", "upper_s", "batch", "total_bytes", "capacity_bytes",
            "total_error_bytes", "notes", "categories", "out_of_memory")  # fmt: skip
    assert {n: data[n] for n in same} == {n: json.loads(json.dumps(saved[n])) for n in same}
    assert data["throughput"] == saved["throughput_per_s"]
    assert sum(data["memory_parts"].values()) == data["total_bytes"] == int(data["nodes"]["held_bytes"][0])
    assert data["curve"]["computed"] == saved["curve"]["computed"]
    assert data["curve"]["most_throughput"] == profile.curve.most_throughput
    curve = data["memory_curve"]
    assert curve["allocated_bytes"].tolist() == [point[1] for point in saved["memory_curve"]]
    assert curve["kinds"]["activation"].tolist() == [point[3]["activation"] for point in saved["memory_curve"]]


def test_tables_sum_what_the_tree_has(shown):
    profile, data = shown
    names = data["names"]

    def rows(table, column):
        return {names[n]: v for n, v in zip(data["tables"][table]["name"], data["tables"][table][column], strict=True)}

    assert rows("lines", "wall_s") == {line.name: line.wall_s for line in profile.lines}
    assert rows("lines", "registered_bytes") == {line.name: line.registered_bytes for line in profile.lines}
    kernels: dict[str, list[Node]] = {}
    for node in profile.root.walk():
        if node.kind == "kernel":
            kernels.setdefault(node.name, []).append(node)
    expected = {
        name: math.fsum(part.wall_s for node in nodes for part in node.seconds.values())
        for name, nodes in kernels.items()
    }
    assert rows("kernels", "wall_s") == pytest.approx(expected, rel=1e-15)
    assert math.fsum(rows("kernels", "wall_s").values()) == pytest.approx(profile.iteration_s, rel=1e-12)


def test_a_module_within_a_module_of_its_name_counts_once():
    leaf = Node("operator", "mm", 1, {"forward": Seconds(0.5, 0.5, 0.0)})
    inner = Node("module", "rnn", 1, leaf.seconds, children=(leaf,))
    line = Node("line", "a.py:3", 1, leaf.seconds, children=(inner,))
    outer = Node("module", "rnn", 1, leaf.seconds, children=(line,))
    root = Node("step", "step", 1, leaf.seconds, children=(outer,))
    data = profile_page_data(StepProfile("a.py", "predicted", "", root, 0.5, 0.5, 0.5))
    assert data["tables"]["modules"]["wall_s"].tolist() == [0.5]


def test_small_parts_are_joined_and_sums_stay():
    profile = small_profile()
    count = sum(1 for _ in profile.root.walk())
    small = merge_small_nodes(profile.root, 40)
    assert 10 < sum(1 for _ in small.walk()) < count
    assert small.seconds == profile.root.seconds and small.held_bytes == profile.root.held_bytes
    StepProfile("x", "predicted", "", small, small.wall_s, 0.0, 0.0).check()
    assert merge_small_nodes(profile.root, count) == profile.root


def test_a_profile_that_is_too_large_is_joined_and_says_so(monkeypatch):
    profile = large_profile(1000)
    count, size = sum(1 for _ in profile.root.walk()), len(profile_html(profile).encode())
    monkeypatch.setattr(html_page, "MOST_BYTES", size - 1000)
    page = profile_html(profile)
    data = data_of(page)
    assert len(page.encode()) <= size - 1000
    assert data["notes"] == [
        f"The page shows the {count // 2} largest parts of {count}; smaller ones are joined, or left out of tables."
    ]
    assert data["nodes"]["wall_s"][0] == profile.root.wall_s and len(data["nodes"]["name"]) < count
    assert any("smaller parts" in name for name in data["names"])


@pytest.mark.slow
def test_50_000_kernels_are_in_one_page():
    page = profile_html(large_profile(50_000))
    assert len(page.encode()) <= MOST_BYTES
    assert len(data_of(page)["tables"]["kernels"]["name"]) == 50_000


def test_an_anonymous_page_names_no_file():
    profile = small_profile()
    data = data_of(profile_html(profile, anonymous=True, text_of=lambda place: "secret = 1"))
    text = json.dumps([data["names"], data["name"], data["notes"]])
    assert "secret" not in text and ".py" not in text and "net/" not in text
    assert data["name"] == "step" and {"file-1:9", "file-2:10"} <= set(data["names"])
    assert data["nodes"]["wall_s"][0] == profile.iteration_s


def test_an_anonymous_difference_names_no_file_of_either_side():
    before, after = (_profile_of_line(x, f"My Net {x}") for x in ("old stuff/train file:7", "b.py:7"))
    before = replace(
        before, out_of_memory="mm at lost stuff/sub file:3: too much", out_of_memory_at="lost stuff/sub file:3"
    )
    for pair in ((before, after), (after, before)):
        page = profile_html(pair[1], anonymous=True, parts=hints_and_difference_data(pair[1], None, difference(*pair)))
        found = data_of(page)["difference"]
        text = json.dumps(found)
        assert not [word for word in ("stuff", "train", "sub", "b.py", "My Net") if word in text]
        assert {found["before"]["name"], found["after"]["name"]} == {"step"}
        assert sorted(row["name"].partition("-")[0] for row in found["lines"]) == ["file", "file"]


def _profile_of_line(line, name):
    root = Node("line", line, 1, {"forward": Seconds(1.0, 1.0, 0.0)})
    step = Node("step", "step", 1, root.seconds, children=(root,))
    return StepProfile(name, "predicted", "a100", step, 1.0, 1.0, 1.0)


def test_lines_have_their_text():
    data = data_of(profile_html(small_profile(), text_of=lambda place: f"text of {place}"))
    lines, names = data["tables"]["lines"], data["names"]
    assert {names[n]: names[t] for n, t in zip(lines["name"], lines["text"], strict=True)}["net/train.py:9"] == (
        "text of net/train.py:9"
    )


def test_a_notebook_shows_the_page_and_a_table():
    shown = small_profile()._repr_html_()
    assert shown.startswith("<table>") and shown.count("<iframe") == 1
    assert 'sandbox="allow-scripts"' in shown and shown.count("<script") == 0


def test_every_number_has_its_interval_beside_it():
    profile = small_profile()
    data, walked = data_of(profile_html(profile)), list(profile.root.walk())
    ends = data["nodes"]["intervals"]
    for what, name in (("wall", "interval_s"), ("device", "device_interval_s")):
        for place, end in enumerate(("lower", "upper")):
            expected = [(getattr(node, name) or (None, None))[place] for node in walked]
            shown_ends = [None if math.isnan(x) else x for x in ends[f"{what}_{end}_s"].tolist()]
            assert shown_ends == expected and expected.count(None) < len(expected) / 2
    lines = data["tables"]["lines"]
    for number, line in enumerate(profile.lines):
        lower = math.fsum(part.wall_s for part in line.lower.values())
        shown_lower = lines["intervals"]["wall_lower_s"][number]
        assert shown_lower == lower if line.lower else math.isnan(shown_lower)
    samples = profile.throughput * profile.iteration_s
    assert data["throughput_interval"] == [samples / profile.upper_s, samples / profile.lower_s]
    assert data["label"] == profile.label == "predicted"


def test_a_page_without_intervals_says_so():
    data = data_of(profile_html(large_profile(20)))
    assert data["nodes"]["intervals"] is None and data["tables"]["kernels"]["intervals"] is None


def test_joined_parts_keep_the_sum_of_their_intervals():
    root = small_profile().root
    small = merge_small_nodes(root, 40)
    assert small.interval_s == root.interval_s
    for node in small.walk():
        if node.children and node.interval_s:
            lower = math.fsum(child.interval_s[0] for child in node.children if child.interval_s)
            assert node.interval_s[0] == pytest.approx(lower, rel=1e-12)


def test_a_calibrated_prediction_is_called_so():
    data = data_of(profile_html(replace(small_profile(), is_calibrated=True)))
    assert (data["source"], data["label"]) == ("predicted", "calibrated")


def test_holders_of_memory_are_those_of_the_profile():
    profile = small_profile()
    data = data_of(profile_html(profile))
    held, names = data["memory_curve"]["holders"], data["names"]
    assert held["end"].tolist() == [2 * (n + 1) for n in range(50)]
    pairs = [(names[n], size) for n, size in zip(held["name"], held["bytes"], strict=True)]
    assert pairs == [pair for point in profile.memory_curve for pair in point.holders.items()]


def test_files_with_strange_names_are_left_out_of_an_anonymous_page():
    names = (
        "/home/Jané Doe/my net/train:7",
        "C:\\Users\\jane\\x y.py:3",
        "ネット/モデル:12",
        "../secret/run:1",
        "plain:9",
    )
    leaves = [Node("line", name, 1, {"forward": Seconds(0.25, 0.25, 0.0)}) for name in names]
    root = Node("step", "step", 5, {"forward": Seconds(1.25, 1.25, 0.0)}, children=tuple(leaves))
    notes = tuple(f"See {name}, and ~/private/ckpt.pt or \\\\server\\share\\a.txt." for name in names)
    point = MemoryPoint(0.0, 4, 4, {"activation": 4}, {f"activation fc {names[0]}": 4})
    profile = StepProfile(
        "secret_name.py", "predicted", "a100", root, 1.25, 1.0, 2.0, notes=notes, memory_curve=(point,),
        out_of_memory=f"aten.mm of forward at {names[1]}: too much",
    )  # fmt: skip
    page = profile_html(profile, anonymous=True, text_of=lambda _: "password")
    data = json.dumps(data_of(page), default=lambda array: array.tolist(), ensure_ascii=False)
    text = page[: page.index("<style>")] + data
    for word in ("Jané", "Doe", "my net", "jane", "x y", "ネット", "モデル", "secret", "plain", "private", "server",
                 "share\\", "password", "ckpt"):  # fmt: skip
        assert word not in text, word
