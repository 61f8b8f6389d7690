"""In a real browser: every number of the page is one of the JSON's, to the last digit, with its label and interval."""

from __future__ import annotations

import json
import math

import pytest

from roller.insight.step_profile.profile_html_page import profile_html
from roller.insight.step_profile.profile_json import load_profile, save_profile
from tests.browser.test_browser import LABELS, opened, pytestmark  # noqa: F401 - the marks of the other file hold here
from tests.insight.step_profile.profiles import small_profile

INTERVALS = {"known", "unknown", "exact", "derived"}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return the JSON of a profile, the profile that is read from it, and what the page of that showed."""
    folder = tmp_path_factory.mktemp("numbers")
    save_profile(small_profile(), folder / "profile.json")
    profile = load_profile(folder / "profile.json")
    found = opened(profile_html(profile), folder, "every_number.js")
    return json.loads((folder / "profile.json").read_text()), profile, found


def test_every_number_has_its_label_and_its_interval(read):
    _, _, found = read
    count = 0
    for name, numbers in found["numbers"].items():
        assert numbers, name
        for one in numbers:
            count += 1
            assert one["label"] in LABELS and one["interval"] in INTERVALS, (name, one)
            assert one["label"] in one["title"], (name, one)
            if one["interval"] == "known":
                assert float(one["lower"]) < float(one["upper"]) and " to " in one["title"], (name, one)
            else:
                assert "lower" not in one and "upper" not in one, (name, one)
    assert count > 500


def interval_of(one):
    return (float(one["lower"]), float(one["upper"])) if one["interval"] == "known" else None


def test_the_tree_has_the_numbers_and_intervals_of_the_json(read):
    data, profile, found = read
    nodes = list(profile.root.walk())
    assert len(found["nodes"]["time"]) > 30
    for one in found["nodes"]["time"]:
        row, node = data["nodes"][one["node"]], nodes[one["node"]]
        assert float(one["value"]) == math.fsum(part[0] for part in row["seconds"].values())
        expected = node.interval_s if one["node"] else (data["lower_s"], data["upper_s"])
        assert interval_of(one) == (expected if expected[1] > expected[0] else None)
    for one in found["nodes"]["memory"]:
        assert float(one["value"]) == sum(data["nodes"][one["node"]]["held_bytes"].values())


def test_the_chosen_part_tells_its_interval_in_words(read):
    _, profile, found = read
    nodes = list(profile.root.walk())
    for node, rows in found["details"].items():
        told = {row["name"]: row for row in rows}
        own = nodes[int(node)]
        assert float(told["wall time"]["value"]) == own.wall_s
        is_known = int(node) == 0 or own.interval_s[1] > own.interval_s[0]
        assert (" to " in told["its interval"]["text"]) == is_known
        for phase, part in own.seconds.items():
            assert float(told[phase]["value"]) == part.wall_s
            ends = own.lower[phase].wall_s, own.upper[phase].wall_s
            assert interval_of(told[phase]) == (ends if ends[1] > ends[0] else None)


def test_every_row_of_every_table_is_the_profiles(read):
    _, profile, found = read
    lines = {line.name: line for line in profile.lines}
    assert set(found["tables"]["lines"]) == set(lines)
    for name, row in found["tables"]["lines"].items():
        line = lines[name]
        assert float(row["time"]["value"]) == line.wall_s
        assert float(row["memory"]["value"]) == line.total_held_bytes
        ends = [math.fsum(part.wall_s for part in end.values()) for end in (line.lower, line.upper)]
        assert interval_of(row["time"]) == (tuple(ends) if ends[1] > ends[0] else None)
        if ends[1] > ends[0]:
            assert " to " in row["interval"]["text"]
    for table, kind in {"operators": "operator", "kernels": "kernel", "modules": "module"}.items():
        assert set(found["tables"][table]) == {n.name for n in profile.root.walk() if n.kind == kind}
        for name, row in found["tables"][table].items():
            same = [n for n in profile.root.walk() if (n.kind, n.name) == (kind, name)]
            whole = math.fsum(part.wall_s for n in same for part in n.seconds.values())
            assert float(row["time"]["value"]) == pytest.approx(whole, rel=1e-15)


def test_every_moment_has_the_bytes_and_holders_of_the_json(read):
    data, _, found = read
    assert len(found["moments"]) == len(data["memory_curve"]) == len(data["memory_holders"]["points"])
    names = data["memory_holders"]["names"]
    for shown, point, held in zip(
        found["moments"], data["memory_curve"], data["memory_holders"]["points"], strict=True
    ):
        assert shown["levels"] == [point[1], point[2], *point[3].values()]
        assert [tuple(x) for x in shown["holders"]] == [(names[n], size) for n, size in held]


def test_a_moment_is_kept_by_keys_and_by_a_click(tmp_path):
    found = opened(profile_html(small_profile()), tmp_path, "keyboard.js")
    assert "after operator 0, kept" in found["kept"] and found["unmoved"] == found["kept"]
    assert "kept" not in found["left"]
    assert "kept" in found["clicked"] and found["still"] == found["clicked"] and found["holders"] == 2
    assert {"button", "treeitem", "slider", "tab", "grid", "summary"} <= set(found["reached"])
