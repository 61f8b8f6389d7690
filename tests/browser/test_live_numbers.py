"""Every number of the live page has its label, its interval and all its digits; parts and lines have their own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from roller.insight.step_profile.profile_json import profile_from_json_data
from tests.browser.test_browser import LABELS, ROOT, pytestmark  # noqa: F401 - the marks of the other file hold here
from tests.browser.test_live_page import ENTRY, NET, driven
from tests.browser.test_numbers import INTERVALS, interval_of

#: A network of one's own on a GPU, and a model of the examples on a processor.
CASES = {"gpu": ("--device", "rtx3090"), "processor": ("--device", "cpu-avx2,h100", "--batch", "4")}


@pytest.fixture(scope="module", params=CASES)
def read(request, tmp_path_factory):
    """Return what the page of one case showed, and the profile that the server told."""
    folder = tmp_path_factory.mktemp("numbers")
    if request.param == "gpu":
        (folder / "net.py").write_text(NET)
        (folder / "train.py").write_text(ENTRY, encoding="utf-8")
    else:
        (folder / "train.py").write_bytes((ROOT / "examples" / "training" / "gan.py").read_bytes())
    found = driven(folder / "train.py", "live_numbers.js", *CASES[request.param])
    return found, profile_from_json_data(found["told"]["profile"]["profile"])


def test_every_number_has_its_label_its_interval_and_all_digits(read):
    found, _ = read
    assert len(found["numbers"]) > 150
    for one in found["numbers"]:
        assert one["label"] in LABELS and one["interval"] in INTERVALS, one
        assert repr(float(one["value"])) in (one["value"], f"{one['value']}.0") or float(one["value"]) != 0.0, one
        if one["interval"] == "known":
            assert float(one["lower"]) < float(one["upper"]) and " to " in one["title"], one
            assert float(one["lower"]) <= float(one["value"]) <= float(one["upper"]), one
        else:
            assert "lower" not in one and "upper" not in one, one
        assert one["title"], one
    by_kind = {one["interval"] for one in found["numbers"]}
    assert by_kind == INTERVALS


def test_each_part_has_its_own_interval(read):
    found, profile = read
    nodes = list(profile.root.walk())
    assert len(found["parts"]) > 20
    known = 0
    for number, part in found["parts"].items():
        node = nodes[int(number)]
        if part["time"]:
            assert float(part["time"]["value"]) == node.wall_s
            expected = node.interval_s if node.interval_s and node.interval_s[0] < node.interval_s[1] else None
            assert interval_of(part["time"]) == expected
            known += expected is not None
        if part["memory"]:
            assert float(part["memory"]["value"]) == node.total_held_bytes
            assert part["memory"]["interval"] == "unknown"
    assert known > 10
    step, memory = found["whole"]
    assert (float(step["value"]), interval_of(step)) == (profile.iteration_s, (profile.lower_s, profile.upper_s))
    total, error = profile.total_bytes, profile.total_error_bytes
    assert interval_of(memory) == ((total - error, total + error) if error else None)
    for number, title in found["titles"]:
        ends = nodes[number].interval_s
        assert (" to " in title) is bool(ends and ends[0] < ends[1]), title


def test_marks_beside_lines_have_the_lines_intervals(read):
    found, _ = read
    lines = {line["line"]: line for line in found["told"]["profile"]["lines"] if line["file"] == "train.py"}
    assert found["marks"]
    for mark in found["marks"]:
        line = lines[int(mark["title"].removeprefix("Line ").partition(":")[0])]
        assert float(mark["value"]) == line["wall_s"]
        ends = line["interval_s"]
        assert interval_of(mark) == (tuple(ends) if ends and ends[0] < ends[1] else None)
        assert ("no interval is known" in mark["title"]) is (mark["interval"] == "unknown")


def test_a_hint_that_is_switched_on_redraws_time_and_memory(read):
    found, profile = read
    rows = {hint["change"]: hint for hint in found["told"]["hints"]["hints"]}
    assert found["hints"]
    for shown in found["hints"]:
        hint, told = rows[shown["change"]], shown["told"]
        assert float(shown["step"]["value"]) == hint["iteration_s"] == told["iteration_us"] / 1e6
        delta = hint["memory_delta_bytes"]
        if delta is None:
            assert "not modelled" in shown["row"] and shown["memory"]["text"] == "not modelled"
            assert "not modelled" in shown["together"]
        else:
            assert int(shown["memory"]["value"]) == profile.total_bytes + delta == told["total_bytes"]
