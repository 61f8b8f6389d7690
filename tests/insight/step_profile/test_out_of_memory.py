"""A step that does not fit: it exceeds every budget at the line that fails, and its memory compares with none."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from roller.errors import ArtifactError, RollerError
from roller.insight.step_profile.budget import check_budget, read_budget, write_budget
from roller.insight.step_profile.difference import difference
from roller.insight.step_profile.hints_difference_json import difference_data, hints_and_difference_data
from roller.insight.step_profile.profile_html_page import profile_html
from roller.insight.step_profile.profile_json import profile_from_json_data, profile_to_json_data, save_profile
from tests.insight.step_profile.sarif_objects import problems_of
from tests.insight.step_profile.test_profile_json import sample
from tests.insight.step_profile.test_profile_page import data_of

WHY = "aten.mm.default of forward at train.py:2: out of memory: too much. Use a smaller batch."
LIMITS = """
step: {time_ms: 1.0e+9, memory_mib: 1.0e+9}
modules: {fc: {time_ms: 1.0e+9}}
lines: {'train.py:9': {memory_mib: 1.0e+9}}
"""


def unfit(**more):
    return replace(sample(), out_of_memory=WHY, out_of_memory_at="train.py:2", **more)


def test_it_exceeds_every_limit_at_the_line_that_fails(tmp_path):
    (tmp_path / "budget.yaml").write_text(LIMITS)
    budget = read_budget(tmp_path / "budget.yaml")
    assert check_budget(sample(), budget) == ()
    found = check_budget(unfit(), budget)
    assert [x.limit for x in found] == list(budget.limits) and {x.found for x in found} == {math.inf}
    assert {x.place for x in found} == {"train.py:2"}
    wanted = "train.py:2: step: expected a time of at most 1000000000 ms, got a step that does not fit: "
    assert str(found[0]) == wanted + WHY
    older = check_budget(replace(unfit(), out_of_memory_at=""), budget)  # of a file that does not tell the line
    assert [x.place for x in older] == ["train.py:9"] * 4


def test_the_verb_fails_and_writes_each_limit_for_code_scanning(cli, tmp_path):
    save_profile(unfit(), tmp_path / "p.json")
    (tmp_path / "budget.yaml").write_text(LIMITS)
    code, _, err = cli(
        "profile", tmp_path / "p.json", "--budget", tmp_path / "budget.yaml", "--sarif", tmp_path / "found.sarif"
    )
    assert code == 1 and err.count("got a step that does not fit") == 4
    data = json.loads((tmp_path / "found.sarif").read_text())
    results = data["runs"][0]["results"]
    assert problems_of(data) == [] and len(results) == 4
    for result in results:
        place = {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 2}}
        assert [x["physicalLocation"] for x in result["locations"]] == [place]


def test_it_keeps_no_budget(tmp_path):
    with pytest.raises(RollerError, match=r"budget: expected a step that fits, got one that does not: aten\.mm"):
        write_budget(unfit(), tmp_path / "budget.yaml")
    assert not (tmp_path / "budget.yaml").exists()


def test_the_line_that_fails_is_saved_and_checked():
    data = profile_to_json_data(unfit())
    assert profile_from_json_data(data).out_of_memory_at == "train.py:2" == data["out_of_memory_at"]
    assert profile_from_json_data({k: v for k, v in data.items() if k != "out_of_memory_at"}).out_of_memory_at == ""
    with pytest.raises(ArtifactError, match=r"the line 'train\.py:0'"):
        profile_from_json_data(data | {"out_of_memory_at": "train.py:0"})


@pytest.mark.parametrize("side", ["Before", "After"])
def test_its_memory_compares_with_none(cli, tmp_path, side):
    pair = (unfit(), sample()) if side == "Before" else (sample(), unfit())
    found = difference(*pair)
    assert not found.fits and found.delta_bytes is None and found.misfits == (f"{side} does not fit: {WHY}",)
    assert f"{side} does not fit: {WHY}" in found._repr_html_()
    data = difference_data(found)
    assert data["delta_bytes"] is None and data[side.lower()]["out_of_memory_at"] == "train.py:2"
    assert data[side.lower()]["out_of_memory"] == WHY and data["lines"] == []  # times are equal
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    save_profile(pair[0], before)
    save_profile(pair[1], after)
    code, out, _ = cli("profile", after, "--against", before)
    out = " ".join(out.split())
    assert code == 0 and "Difference: 0 us, memory does not compare." in out and found.misfits[0] in out
    shown = data_of(profile_html(pair[1], parts=hints_and_difference_data(pair[1], None, found)))["difference"]
    assert shown["delta_bytes"] is None and shown[side.lower()]["out_of_memory"] == WHY


def test_lines_that_differ_in_time_tell_no_change_of_memory():
    slower = difference(small_step(0.5), replace(small_step(0.75), out_of_memory=WHY))
    (row,) = difference_data(slower)["lines"]
    assert (row["delta_s"], row["delta_bytes"], row["made_delta_bytes"]) == (0.25, None, None)
    assert difference_data(difference(small_step(0.5), small_step(0.75)))["lines"][0]["delta_bytes"] == 2


def small_step(seconds):
    from tests.insight.step_profile.test_difference import NodeKey, profile_of

    path = (NodeKey("line", "a.py:1"), NodeKey("operator", "mm"), NodeKey("kernel", "gemm"))
    return profile_of([(path, seconds, int(8 * seconds))])
