"""The verb's differences, budgets and hints: a revision of git, another device, exit status, SARIF."""

from __future__ import annotations

import json
import re

import pytest

from roller.errors import RollerError
from roller.insight.step_profile.node import Seconds
from roller.insight.step_profile.profile_json import save_profile
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder
from tests.git_repositories import commit_all
from tests.insight.step_profile.sarif_objects import problems_of
from tests.insight.step_profile.test_difference import NET, STEP
from tests.insight.step_profile.test_profile_files import recorded as recorded
from tests.insight.step_profile.test_profile_json import sample


@pytest.fixture
def project(tmp_path):
    """Return an entry file in a repository, in which a layer is 1000 wide and was 999 at HEAD, three lines above."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("WIDTH = 999\n" + NET + STEP)
    commit_all(folder)
    (folder / "train.py").write_text("WIDTH = 1000\n# three\n# more\n# lines\n" + NET + STEP)
    return folder / "train.py"


def test_the_difference_to_a_saved_profile(cli, tmp_path, recorded):
    save_profile(sample(), tmp_path / "p.json")
    code, out, _ = cli("profile", recorded, "--against", tmp_path / "p.json")
    assert code == 0 and "Before: train.py: predicted on 2xa100" in out and "Difference: -349.000 ms" in out


def _lines_of(**seconds):
    tree = TreeBuilder()
    for line, took in seconds.items():
        tree.add_time((NodeKey("line", f"{line}.py:1"), NodeKey("operator", "mm")), "forward", Seconds(took, took, 0.0))
    root = tree.build()
    return StepProfile("a.py", "predicted", "a100", root, root.wall_s, root.wall_s, root.wall_s)


def _difference_rows(cli, folder, before, after):
    for name, one in (("before", before), ("after", after)):
        save_profile(one, folder / f"{name}.json")
    code, out, err = cli("profile", folder / "after.json", "--against", folder / "before.json")
    assert code == 0, err
    return out, {row.split()[0]: " ".join(row.split()[1:]) for row in out.splitlines() if ".py:1 " in row}


def test_a_column_has_one_unit_and_unchanged_lines_no_row(cli, tmp_path):
    out, rows = _difference_rows(
        cli, tmp_path, _lines_of(a=20e-6, b=5e-6, c=1e-6, d=1e-6, e=3e-6),
        _lines_of(a=10e-6, b=5e-6, c=1e-6 + 1e-20, d=1e-6 - 1e-13, e=4.5e-6),
    )  # fmt: skip
    assert rows == {"a.py:1": "-10.000 us 0 MiB", "e.py:1": "+1.500 us 0 MiB", "d.py:1": "< 0.001 us 0 MiB"}
    assert "-0.000" not in out and "registered modules" in out and "Difference: -8.500 us, 0 MiB." in out
    assert "hardly anything" not in out
    out, rows = _difference_rows(cli, tmp_path, _lines_of(a=2.0, b=0.5), _lines_of(a=2.0, b=0.51))
    assert rows == {"b.py:1": "+10.000 ms 0 MiB"} and "Difference: +10.000 ms" in out
    assert out.rstrip().endswith("The time changes by less than 2 %: hardly anything, steps differ by as much.")


def test_a_budget_decides_the_exit_status(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    code, _, _ = cli("profile", tmp_path / "p.json", "--write-budget", tmp_path / "kept.yaml")
    assert code == 0 and cli("profile", tmp_path / "p.json", "--budget", tmp_path / "kept.yaml")[0] == 0
    (tmp_path / "tight.yaml").write_text("{step: {time_ms: 300}, made_with: {roller: other}}")
    code, _, err = cli(
        "profile", tmp_path / "p.json", "--budget", tmp_path / "tight.yaml", "--sarif", tmp_path / "found.sarif"
    )
    assert code == 1
    assert "train.py:9: step: expected a time of at most 300 ms, got 350 ms, 50 ms more." in err
    assert "roller's model is another one than the budget's" in err
    data = json.loads((tmp_path / "found.sarif").read_text())
    assert problems_of(data) == []
    (result,) = data["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 9


def test_only_an_exceeded_budget_exits_with_1(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    path = tmp_path / "budget.yaml"
    code, _, err = cli("profile", tmp_path / "p.json", "--budget", path)
    assert code == 2 and "budget.yaml: expected a budget, got none. Name one" in err
    for text, said in (
        ("{made_for: {device: h100, batch: 4}, step: {time_ms: 300}}",
         "budget is for h100 at batch 4, the profile for a100 at batch 8. "),
        ("{stop: {time_ms: 300}}", "expected a mapping of step, modules, lines, made_for, made_with, got 'stop'"),
        ("{modules: {fd: {time_ms: 1}}}", "expected a module of the step, got 'fd'"),
    ):  # fmt: skip
        path.write_text(text)
        code, _, err = cli("profile", tmp_path / "p.json", "--budget", path)
        assert code == 2 and said in err


def test_a_budget_that_is_kept_leaves_a_valid_file_without_results(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    cli("profile", tmp_path / "p.json", "--write-budget", tmp_path / "kept.yaml")
    code, _, err = cli(
        "profile", tmp_path / "p.json", "--budget", tmp_path / "kept.yaml", "--sarif", tmp_path / "found.sarif"
    )
    data = json.loads((tmp_path / "found.sarif").read_text())
    assert (code, "expected" in err, problems_of(data), data["runs"][0]["results"]) == (0, False, [], [])


@pytest.mark.slow
def test_a_slower_device_of_the_same_name_is_said_to_be_the_cause(cli, project, tmp_path):
    pytest.importorskip("torch")
    budget, found = tmp_path / "budget.yaml", tmp_path / "found.sarif"
    assert cli("profile", project, "--write-budget", budget)[0] == 0
    assert cli("profile", project, "--budget", budget)[0] == 0
    slower = ["--set", "memory_layers.global.bandwidth_bytes_per_s=1e9"]
    code, _, err = cli("profile", project, *slower, "--budget", budget, "--sarif", found)
    assert code == 1
    cause = "the specification of a100 changed since the budget was written"
    said = [line for line in err.splitlines() if "expected a time of at most" in line]
    assert cause in err and [x.split(": ")[2] for x in said] == ["step", "module body", "module head"]
    assert all(re.search(r"train\.py:\d+: .* got .* ms, .* ms more\.", x) for x in said)
    data = json.loads(found.read_text())
    assert problems_of(data) == []
    assert [cause in result["message"]["text"] for result in data["runs"][0]["results"]] == [True, True, True]


def test_sarif_needs_a_budget(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    code, _, err = cli("profile", tmp_path / "p.json", "--sarif", tmp_path / "found.sarif")
    assert code == 2 and "--sarif: expected a --budget" in err and not (tmp_path / "found.sarif").exists()


def test_json_holds_a_difference_beside_the_profile(cli, tmp_path, recorded):
    save_profile(sample(), tmp_path / "p.json")
    code, out, _ = cli("profile", recorded, "--against", tmp_path / "p.json", "--json")
    (found,) = json.loads(out)
    (alone,) = json.loads(cli("profile", recorded, "--json")[1])
    assert code == 0 and list(found) == ["profile", "difference"] and found["profile"] == alone
    told = found["difference"]
    assert told["kind"] == "predicted" and told["delta_s"] == pytest.approx(-0.349)
    assert (told["before"]["name"], told["after"]["source"]) == ("train.py", "recorded")
    assert sum(line["delta_s"] for line in told["lines"]) == pytest.approx(told["delta_s"])
    assert all(line["delta_bytes"] == line["after_bytes"] - line["before_bytes"] for line in told["lines"])


def test_prices_are_those_of_hints(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    code, _, err = cli("profile", tmp_path / "p.json", "--prices", tmp_path / "prices.yaml")
    assert code == 2 and "--prices: expected --hints beside it" in err


def test_another_file_is_profiled_in_the_same_way(cli, project):
    pytest.importorskip("torch")
    code, out, err = cli("profile", project, "--device", "2xt4", "--batch", "64", "--against", project)
    assert code == 0, err
    assert "Before: train.py: predicted on 2xt4, batch 64 per device" in " ".join(out.split())
    assert "Difference: 0 us, 0 MiB." in out and "No line differs." in out


def test_what_a_script_or_a_measurement_is_not_compared_with(cli, project, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('no providers')\n")
    save_profile(sample(), tmp_path / "p.json")
    code, _, err = cli("profile", tmp_path / "p.json", "--against", script)
    assert code == 2 and "--against: expected a profile of script.py, got the script" in err
    code, _, err = cli("profile", tmp_path / "p.json", "--against", "git:HEAD")
    assert code == 2
    assert "--against: expected an entry file or a script that is traced for git:HEAD, got a profile" in err


def test_a_processor_has_no_snapshot_of_an_allocator(cli, project, tmp_path):
    pytest.importorskip("torch")
    for verb in ("profile", "memory"):
        code, _, err = cli(verb, project, "--device", "cpu", "--snapshot", tmp_path / "s.pickle")
        assert code == 2 and "--snapshot: expected a device with a caching allocator, got" in err
        assert not (tmp_path / "s.pickle").exists()


def test_hints_need_the_graph_of_the_step(cli, tmp_path):
    save_profile(sample(), tmp_path / "p.json")
    code, _, err = cli("profile", tmp_path / "p.json", "--hints")
    assert code == 1 and "hints: expected a step that is traced or recorded, on one device, got a predicted" in err


def test_a_revision_against_the_working_tree(cli, project):
    pytest.importorskip("torch")
    code, out, err = cli("profile", project, "--against", "git:HEAD")
    assert code == 0, err
    rows = out[out.index("weights made here") :].splitlines()[1:]
    assert rows[0].split()[0] == "train.py:13"  # where the layer is now
    assert not any("train.py:10 " in row for row in rows)  # where it was


def test_what_is_no_revision_is_refused(project, tmp_path):
    from roller.insight.step_profile.earlier_revision_and_moved_lines import checkout_revision

    for revision, said in (
        ("none", "--against git:none: expected a revision of this repository, got none"),
        ("-x", "expected a revision, got"),
    ):
        with pytest.raises(RollerError, match=said), checkout_revision(project, revision):
            pass
    alone = tmp_path / "alone.py"
    alone.write_text("")
    with (
        pytest.raises(RollerError, match=r"git:HEAD: expected alone\.py in a repository"),
        checkout_revision(alone, "HEAD"),
    ):
        pass
    new = project.with_name("new.py")
    new.write_text("")
    said = r"new\.py: expected a file at revision 'HEAD', got none\. It is not in git: commit it first\."
    with pytest.raises(RollerError, match=said), checkout_revision(new, "HEAD"):
        pass
