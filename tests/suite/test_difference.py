"""Two runs of the suite: a planted slow-down is found, noise is not, and what cannot be compared is said."""

import json
import math
import random

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.errors import RollerError
from roller.suite.difference import difference, difference_notes
from roller.suite.registry import MODELS
from roller.suite.run_file import SuiteRun, read_run, run_header, write_run


def measured(model, processes, batch=8, **more):
    return {
        "model": model, "device": "a processor", "batch": batch, "kind": "measured", "throughput_per_s": 1.0,
        "is_stable": True, "samples_s": processes, **more,
    }  # fmt: skip


def run_of(seed, processes=5, slower=1.0, iterations=30):
    """Return a run of all sixteen: iterations are off by 2 %, and processes by 1 % beside that."""
    generator, rows = random.Random(seed), []
    for number, model in enumerate(MODELS):
        mean = 0.01 * (1 + number) * (slower if model == "bert_base" else 1.0)
        own = [mean * (1 + 0.01 * generator.gauss(0, 1)) for _ in range(processes)]
        rows.append(measured(model, [[m * (1 + 0.02 * generator.gauss(0, 1)) for _ in range(iterations)] for m in own]))
    return SuiteRun({"seed": 0}, rows)


def test_a_planted_slow_down_of_five_percent_is_found_and_nothing_else_ten_times_of_ten():
    for seed in range(10):
        found = difference(run_of(seed), run_of(100 + seed, slower=1.05))
        assert [row.model for row in found.regressions] == ["bert_base"]
        (row,) = found.regressions
        assert row.ratio.lower < 1.05 < row.ratio.upper
        assert {row.verdict for row in found.rows if row.model != "bert_base"} == {"same"}


def test_without_one_nothing_is_found_ten_times_of_ten():
    for seed in range(10):
        found = difference(run_of(seed), run_of(100 + seed))
        assert found.regressions == () and {row.verdict for row in found.rows} == {"same"}


def test_what_became_faster_is_no_regression():
    found = difference(run_of(1, slower=1.08), run_of(2))
    assert [row.model for row in found.rows if row.verdict == "faster"] == ["bert_base"] and not found.regressions


def test_one_process_has_the_noise_of_its_iterations_alone_which_is_said():
    before = SuiteRun({}, [measured("a3c", [[1.0, 1.01, 0.99, 1.0, 1.02, 0.98]])])
    after = SuiteRun({}, [measured("a3c", [[1.2, 1.21, 1.19, 1.2, 1.22, 1.18]])])
    found = difference(before, after)
    assert [row.verdict for row in found.rows] == ["slower"] and "Run with --repeat 5" in found.notes[0]


def test_the_noise_between_processes_decides_and_not_that_within_them():
    # Iterations agree to 0.01 %, processes are 3 % apart: a change of 2 % is noise.
    before = SuiteRun({}, [measured("a3c", [[1.0, 1.0001], [1.03, 1.0301], [0.97, 0.9701]])])
    after = SuiteRun({}, [measured("a3c", [[1.02, 1.0201], [1.05, 1.0501], [0.99, 0.9901]])])
    (row,) = difference(before, after).rows
    assert row.verdict == "same" and row.ratio.mean == pytest.approx(1.02, abs=1e-3)


def test_what_is_unstable_or_only_in_one_run_is_said():
    unstable = measured("ncf", [[1.0, 1.0]], is_stable=False)
    before = SuiteRun({"environment": {"packages": {"torch": "2.1"}}}, [unstable, measured("a3c", [[1.0, 1.1]])])
    after = SuiteRun({"environment": {"packages": {"torch": "2.2"}}}, [unstable, measured("minigo", [[1.0, 1.1]])])
    found = difference(before, after)
    assert [(row.model, row.verdict, row.reason) for row in found.rows] == [("ncf", "not compared", "it was unstable")]
    assert found.only_before == (("a3c", 8, "measured", ""),) and found.only_after == (("minigo", 8, "measured", ""),)
    assert list(difference_notes(found)) == [
        "environment.packages.torch: 2.1 before, 2.2 after", "only before: a3c 8 measured",
        "only after: minigo 8 measured",
    ]  # fmt: skip


def test_predictions_have_no_noise():
    def predicted(seconds):
        row = {"model": "a3c", "device": "v100", "batch": 8, "kind": "predicted", "throughput_per_s": 1.0}
        return SuiteRun({}, [{**row, "iteration_s": seconds}])

    assert [r.verdict for r in difference(predicted(1.0), predicted(1.002)).rows] == ["slower"]
    assert [r.verdict for r in difference(predicted(1.0), predicted(1.0005)).rows] == ["same"]
    assert [r.reason for r in difference(predicted(1.0), predicted(None)).rows] == ["it does not fit"]


def test_a_run_is_read_as_it_was_written(tmp_path):
    path, run = tmp_path / "run.json", run_of(0)
    write_run(path, run)
    assert read_run(path).to_dict() == run.to_dict() == json.loads(path.read_text())
    assert run_header("1.0", seed=3)["seed"] == 3 and "cache" not in run_header("1.0")["environment"]


@pytest.mark.parametrize(
    "text, got",
    [("[]", "another file"), ('{"format": "roller suite run", "version": 2}', "version 2"),
     ('{"format": "roller suite run", "version": 1, "run": {}, "rows": {}}', "another file")],
)  # fmt: skip
def test_another_file_is_refused(tmp_path, text, got):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RollerError, match=f"expected a run of the suite of version 1, got {got}"):
        read_run(path)
    path.write_text("{")
    with pytest.raises(RollerError, match="expected the JSON of a run"):
        read_run(path)


def test_the_command_exits_with_1_for_a_regression_alone(tmp_path):
    paths = [tmp_path / name for name in ("before.json", "after.json", "slow.json")]
    for path, run in zip(paths, (run_of(0), run_of(1), run_of(2, slower=1.08)), strict=True):
        write_run(path, run)

    def diff(*words):
        return CliRunner().invoke(app, ["suite", "diff", *map(str, words)], env={"COLUMNS": "200"})

    assert diff(paths[0], paths[1]).exit_code == 0
    done = diff(paths[0], paths[2])
    assert done.exit_code == 1
    (line,) = [line for line in done.stdout.splitlines() if "slower" in line]
    assert line.split()[0] == "bert_base" and "+" in line
    rows = json.loads(diff(paths[0], paths[2], "--json").stdout)["rows"]
    assert [row["model"] for row in rows if row["verdict"] == "slower"] == ["bert_base"]


BAD_ROWS = {
    "nothing": {}, "a name that is none": {"model": ["a3c"]}, "a batch that is none": {"batch": [8]},
    "negative": {"samples_s": [[-1.0, 1.0]]}, "zero": {"samples_s": [[0.0, 1.0]]}, "nan": {"samples_s": [[math.nan]]},
    "infinite": {"samples_s": [[math.inf]]}, "text": {"samples_s": [["1"]]}, "null": {"samples_s": [[None, 1.0]]},
    "a number": {"samples_s": [1.0]},
    "a predicted time": {"iteration_s": -1.0}, "tiny": {"iteration_s": 1e-320}, "no rounds": {"pair": {"id": "x"}},
    "rounds that are numbers": {"pair": {"id": "x", "rounds_s": [1.0]}}, "a pair that is none": {"pair": [1]},
    "rounds of zero": {"pair": {"id": "x", "rounds_s": [[0.0]]}},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_no_run_writes_is_refused(tmp_path, name):
    row = {} if name == "nothing" else {**measured("a3c", [[1.0, 1.0]]), **BAD_ROWS[name]}
    write_run(tmp_path / "run.json", SuiteRun({}, [row]))
    with pytest.raises(RollerError, match="expected rows of a run of the suite, got"):
        read_run(tmp_path / "run.json")


def test_two_rows_of_one_model_are_refused(tmp_path):
    write_run(tmp_path / "run.json", SuiteRun({}, [measured("a3c", [[1.0, 1.0]])] * 2))
    with pytest.raises(RollerError, match="two rows of one model"):
        read_run(tmp_path / "run.json")


def test_why_a_row_is_not_compared_is_printed(tmp_path):
    for name, stable in (("a", True), ("b", False)):
        write_run(tmp_path / name, SuiteRun({}, [measured("a3c", [[1.0, 1.0]], is_stable=stable)]))
    done = CliRunner().invoke(app, ["suite", "diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert "a3c: not compared: it was unstable" in done.output
