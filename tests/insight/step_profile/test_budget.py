"""Budgets: limits that are kept or exceeded, where, why, and as SARIF."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roller.errors import RollerError
from roller.insight.step_profile.budget import (
    Excess,
    Limit,
    _round_up_to_four_digits,
    changed_version_notes,
    check_budget,
    excesses_to_sarif,
    read_budget,
    write_budget,
)
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder
from tests.insight.step_profile.sarif_objects import problems_of
from tests.insight.step_profile.test_profile_json import sample


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "budget.yaml"
        path.write_text(text)
        return path

    return write


def test_a_budget_that_a_profile_wrote_is_kept_and_exceeded_by_a_slower_one(tmp_path, monkeypatch):
    made, path = sample(), tmp_path / "budget.yaml"
    write_budget(made, path)
    budget = read_budget(path)
    assert {(x.part, x.name) for x in budget.limits} == {("step", ""), ("module", "fc")}
    assert check_budget(made, budget) == () and changed_version_notes(made, budget) == ()
    tight = tmp_path / "tight.yaml"
    monkeypatch.setattr("roller.insight.step_profile.budget.SLACK", -0.05)
    write_budget(made, tight)
    assert [(x.limit.part, x.limit.metric, x.place) for x in check_budget(made, read_budget(tight))] == [
        ("step", "time_ms", "train.py:9"), ("step", "memory_mib", "train.py:9"), ("module", "time_ms", "train.py:9"),
        ("module", "memory_mib", "train.py:9"),
    ]  # fmt: skip


def test_an_excess_says_where_what_and_how_much(write):
    (found,) = check_budget(
        sample(), read_budget(write("lines: {'train.py:9': {time_ms: 300, memory_mib: 1000000000.0}}"))
    )
    assert str(found) == "train.py:9: expected a time of at most 300 ms, got 350 ms, 50 ms more."


def test_an_excess_has_four_digits_and_units():
    found = Excess(Limit("module", "fc", "memory_mib", 20123.4567), 20123.767172, "a.py:1")
    assert str(found) == "a.py:1: module fc: expected a memory of at most 20123 MiB, got 20124 MiB, 0.3105 MiB more."


def test_another_specification_is_named_as_the_cause(write):
    text = "{step: {time_ms: 1}, made_with: {roller: '0123', device: abc}}"
    changed = replace(sample(), versions={"roller": "0123", "device": "abd"})
    assert changed_version_notes(changed, read_budget(write(text))) == (
        "the device or its specification is another one than the budget's ('abd', not 'abc'): that may be the cause.",
    )
    assert changed_version_notes(changed, read_budget(write(text[:-1] + ", made_for: {device: a100}}"))) == (
        "the specification of a100 changed since the budget was written ('abd', not 'abc'): that may be the cause.",
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "h100", "batch": 4}, "budget is for 2xa100 at batch 8, the profile for 2xh100 at batch 4. "),
        ({"batch": 4}, "budget is for 2xa100 at batch 8, the profile for 2xa100 at batch 4. "),
        ({"devices": 1}, "budget is for 2xa100 at batch 8, the profile for 1xa100 at batch 8. "),
        ({"amp": "fp32"}, "budget is for 2xa100 at batch 8 in bf16, the profile for 2xa100 at batch 8 in fp32. "),
    ],
)
def test_a_budget_is_for_one_device_batch_and_precision(tmp_path, changes, said):
    write_budget(sample(), tmp_path / "budget.yaml")
    budget = read_budget(tmp_path / "budget.yaml")
    assert budget.made_for == {"device": "a100", "devices": 2, "batch": 8, "amp": "bf16"}
    with pytest.raises(RollerError) as refused:
        check_budget(replace(sample(), **changes), budget)
    assert said in str(refused.value)
    anywhere = replace(budget, made_for={})
    assert check_budget(replace(sample(), **changes), anywhere) == ()


@given(st.floats(1e-9, 1e12))
def test_a_written_limit_is_rounded_up_to_four_digits(value):
    found = _round_up_to_four_digits(value)
    assert value <= found <= value * 1.0011 and found == float(f"{found:.4g}")


def _profile_of(*leaves):
    tree = TreeBuilder()
    for path, took, held in leaves:
        tree.add_time(path, "forward", Seconds(took, took, 0.0))
        tree.add_bytes(path, "context", held=held)
    root = tree.build()
    return StepProfile("train.py", "predicted", "a100", root, root.wall_s, root.wall_s, root.wall_s)


def test_an_excess_of_the_memory_has_a_line_where_no_tensor_takes_most_of_it(write):
    lines = [
        ((NodeKey("line", f"a.py:{n}"), NodeKey("operator", "mm")), 0.1, 2 << 20 if n == 2 else 1 << 20) for n in (1, 2)
    ]
    made = _profile_of(((NodeKey("overhead", "memory of no tensor"),), 0.0, 1 << 30), *lines)
    (found,) = check_budget(made, read_budget(write("step: {memory_mib: 1}")))
    assert found.place == "a.py:2" and str(found).startswith("a.py:2: step: expected a memory of at most 1 MiB")
    (result,) = excesses_to_sarif((found,))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 2}


def test_a_refusal_names_some_modules_and_counts_the_others(write):
    made = _profile_of(*(((NodeKey("module", f"m{n}"), NodeKey("operator", "mm")), 0.1, 1) for n in range(10)))
    with pytest.raises(RollerError, match=r"m0, m1, m2, m3, m4, m5, m6, m7 and 2 more\.$"):
        check_budget(made, read_budget(write("modules: {zzz: {time_ms: 1}}")))


def test_an_excess_of_a_step_without_lines_is_at_the_beginning_of_its_file(write):
    made = _profile_of(((NodeKey("module", "fc"), NodeKey("operator", "mm")), 0.1, 1 << 30))
    budget = read_budget(write("{step: {memory_mib: 1, time_ms: 1}, modules: {fc: {time_ms: 1}}}"))
    assert [x.place for x in check_budget(made, budget)] == ["train.py:1"] * 3


def test_sarif_has_a_result_with_file_and_line_for_each_excess(write):
    excesses = check_budget(sample(), read_budget(write("{step: {time_ms: 1}, modules: {fc: {memory_mib: 1}}}")))
    data = excesses_to_sarif(excesses, ("a cause.",))
    (run,) = data["runs"]
    assert data["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "roller"
    assert [x["ruleId"] for x in run["results"]] == ["budget/time_ms", "budget/memory_mib"]
    rules = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    for result in run["results"]:
        assert (
            result["ruleId"] in rules and result["level"] == "error" and result["message"]["text"].endswith("a cause.")
        )
        (place,) = result["locations"]
        where = place["physicalLocation"]
        assert where == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": 9}}


def test_a_log_of_excesses_has_the_objects_of_sarif_and_no_others(write):
    excesses = check_budget(sample(), read_budget(write("{step: {time_ms: 1}, modules: {fc: {memory_mib: 1}}}")))
    odd = [replace(excesses[0], place=place) for place in ("my project/tr%ain\u00e4.py:9", "/else/where.py:1")]
    assert problems_of(excesses_to_sarif((*excesses, *odd), ("a cause.",))) == []
    wrong = excesses_to_sarif(excesses)
    wrong["runs"][0]["results"][0].pop("message")
    wrong["runs"][0]["results"][1]["locations"][0]["physicalLocation"]["region"]["startLine"] = 0
    wrong["runs"][0]["tool"]["driver"]["kind"] = wrong["version"] = "2.0"
    assert problems_of(wrong) == [
        "log.version: expected a version, got '2.0'",
        "log.runs[0].tool.driver: no property kind",
        "log.runs[0].results[0]: expected message, got none",
        "log.runs[0].results[1].locations[0].physicalLocation.region.startLine: expected a line, got 0",
    ]


def test_weights_of_a_line_count_once(write):
    budget = read_budget(write("lines: {'train.py:2': {memory_mib: 0}, 'train.py:9': {memory_mib: 0}}"))
    made, runs = check_budget(sample(), budget)
    assert (made.found, runs.found) == ((1 << 40) / (1 << 20), ((1 << 40) + 77) / (1 << 20))


def test_a_place_in_sarif_is_a_uri(write):
    excess = Excess(Limit("step", "", "time_ms", 1.0), 2.0, "my project/train.py:9")
    (result,) = excesses_to_sarif((excess,))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "my%20project/train.py"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "expected a mapping of step, modules, lines, made_for, made_with, got"),
        ("{steps: {}}", "expected a mapping of step, modules, lines, made_for, made_with, got 'steps'"),
        ("{step: {}}", "expected at least one limit"),
        ("{step: {time: 3}}", "expected time_ms or memory_mib, got 'time'"),
        ("{step: {time_ms: fast}}", "time_ms: expected a number of at least 0, got 'fast'"),
        ("{step: {time_ms: -1}}", "expected a number of at least 0, got -1"),
        ("{modules: [fc]}", "modules: expected a mapping of names"),
        ("{made_with: 3, step: {time_ms: 1}}", "made_with: expected a mapping of texts"),
        ("{made_for: {batch: many}, step: {time_ms: 1}}", "made_for: expected device and amp as texts, devices"),
        ("{made_for: {gpu: a100}, step: {time_ms: 1}}", "made_for: expected device and amp as texts, devices"),
        ("{", "expected a YAML file"),
    ],
)
def test_what_is_no_budget_is_refused(write, text, said):
    with pytest.raises(RollerError, match=r"Write e\.g\. \{step:") as refused:
        read_budget(write(text))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modules: {fd: {time_ms: 1}}", "expected a module of the step, got 'fd'. Modules that run: fc."),
        ("lines: {'train.py:8': {time_ms: 1}}", "expected a line with an operator or a parameter, got 'train.py:8'"),
    ],
)
def test_parts_that_a_step_does_not_have_are_refused(write, text, said):
    with pytest.raises(RollerError) as refused:
        check_budget(sample(), read_budget(write(text)))
    assert said in str(refused.value)
