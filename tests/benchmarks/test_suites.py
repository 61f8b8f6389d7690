"""The suites of published evaluations: each on a GPU, and what its tables and figures say."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.__main__ import app
from benchmarks.suites import ablations, compile_time, models, operator_sets, resource_change, running
from benchmarks.suites import sokoban as sokoban_suite
from benchmarks.suites.registry import SUITES
from benchmarks.suites.suite import Request
from benchmarks.suites.values import (
    COUNTED,
    MEASURED,
    PREDICTED,
    PUBLISHED,
    Value,
)
from roller.errors import RollerError
from roller.hardware import load_spec
from tests.benchmarks.test_suite_files import results
from tests.offenders import every

V100 = load_spec("v100")
#: Suite -> operators of a run that takes a fraction of a second.
FEW = {
    "operators": "M1,E0", "small": "M1", "scale-out": "SM_512,SC_128,SR_1048576", "irregular": "C9",
    "tensor-core": "TC_M4", "compile-time": "M1", "resource-change": "MM3", "sokoban": "EW1,EW2", "ablations": "R0",
}  # fmt: skip
#: Suites of which ``--quick`` names other cases than the 119.
QUICK = {"sokoban"}


def test_suites_are_listed_and_an_unknown_one_is_refused():
    done = CliRunner().invoke(app, ["list"], terminal_width=200)
    assert done.exit_code == 0 and all(name in done.output for name in SUITES)
    described = (running.HERE / "README.md").read_text(encoding="utf-8").partition("## Suites")[2]
    assert [name for name in SUITES if f"`{name}`" not in described] == []
    done = CliRunner().invoke(app, ["run", "operatrs"])
    assert done.exit_code != 0 and "expected a suite, got 'operatrs'" in f"{done.output}{done.exception}"
    assert "operators" in str(done.exception)
    done = CliRunner().invoke(app, ["run", "small", "--device", "v1000"])
    assert done.exit_code != 0 and "v100" in str(done.exception)


def run_few(name, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_time, "_builder_lacks", lambda: "left out by the test")
    request = Request(V100, quick=name in QUICK, pattern=FEW[name], folder=tmp_path)
    return running.run_suite(SUITES[name], request)


@pytest.mark.slow
@every("name", FEW)
def test_a_suite_predicts_a_gpu_and_says_so(name, tmp_path, monkeypatch):
    found = run_few(name, tmp_path, monkeypatch)
    keys = [v.key for v in found.values]
    assert len(keys) == len(set(keys)), "every value has a key of its own"
    for v in found.values:
        assert (v.value is None and v.note) or v.value > 0, v
        assert v.kind != MEASURED or v.quantity in {"compile time", "processor time"} or "construction" in v.quantity, v
    text = running.page(SUITES[name], found)
    assert f"# {SUITES[name].about}" in text and "Device: v100" in text
    assert "predicted" in text or name == "compile-time"


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    for name in FEW:
        found = run_few(name, tmp_path, monkeypatch)
        figure = pyplot.figure()
        SUITES[name].draw(found, figure)
        assert figure.axes and all(axes.has_data() for axes in figure.axes), name
        pyplot.close(figure)
        path = running.draw(SUITES[name], found, tmp_path / f"{name}.png")
        assert path is not None and path.read_bytes().startswith(b"\x89PNG"), name


def test_shares_of_operators_that_are_faster(tmp_path):
    times = [("M1", 1.0, 2.0), ("M2", 1.0, 1.2), ("C0", 2.0, 1.0)]
    values = [
        Value(case, "time", series, seconds, "s", PREDICTED)
        for case, mine, other in times for series, seconds in (("Roller", mine), ("library", other))
    ]  # fmt: skip
    tables = {title: rows for title, _, rows in operator_sets.OPERATORS.report(results(*values))}
    assert tables["Share at least so many times as fast as the peer"] == [
        ("matmul", "2", "100 %", "100 %", "50 %", "50 %"),
        ("conv", "1", "0 %", "0 %", "0 %", "0 %"),
        ("all", "3", "67 %", "67 %", "33 %", "33 %"),
    ]


def test_compile_times_are_measured_here_beside_published_ones(tmp_path, monkeypatch):
    found = run_few("compile-time", tmp_path, monkeypatch)
    by_series = {v.series: v for v in found.values if v.quantity == "compile time" and v.case == "M1"}
    assert by_series["construction"].kind == MEASURED and 0 < by_series["construction"].value < 60
    assert by_series["construction"].low is None, "three repetitions give no interval"
    assert by_series["TVM"][3:6] == (1354.063, "s", PUBLISHED)
    assert by_series[compile_time.LOWERED].note == "left out by the test"
    (counted,) = [v for v in found.values if v.kind == COUNTED]
    assert counted.value == int(counted.value) > 10
    means = {v.series: v.value for v in found.values if v.case == compile_time.ALL}
    assert means == compile_time.PUBLISHED_MEANS
    assert "no kernel ran on another device" in running.page(SUITES["compile-time"], found)


def test_a_quick_run_of_compile_time_has_an_operator_of_each_class():
    found = compile_time.cases(Request(V100, quick=True))
    assert len({case.kind for case in found}) == len(found) == 6
    assert len(compile_time.cases(Request(V100))) == 119


def test_metaschedule_s_committed_times_are_labelled_with_their_run():
    (one,) = [v for v in compile_time.published(["M4"]) if v.series == compile_time.METASCHEDULE]
    assert one.value > 100 and one.kind == MEASURED and "200 trials; metaschedule.json of" in one.note


@every("device", ["v100", "h100", "mi250x", "cpu-avx512", "ipu_mk2"])
def test_resources_change_as_they_are_called(device):
    spec = load_spec(device)
    found = resource_change.changed(spec)
    tile, memory = [layer for layer in spec.memory_layers if layer.tiled][-1], spec.memory_layers[-1]
    assert found[f"half of {tile.name}"].layer(tile.name).capacity_bytes == tile.capacity_bytes // 2
    for word, factor in (("half", 0.5), ("twice", 2.0)):
        layer = found[f"{word} the bandwidth of {memory.name}"].layer(memory.name)
        assert layer.bandwidth_bytes_per_s == pytest.approx(factor * memory.bandwidth_bytes_per_s)
    assert found["half the units"].units == spec.units // 2
    assert ("half the registers" in found) == bool(spec.limits.registers_per_unit)


def test_a_program_that_does_not_fit_is_said_and_counts_in_no_gain():
    values = [
        Value("A", "unchanged", resource_change.KEPT, 1.0, "s", PREDICTED),
        Value("B", "unchanged", resource_change.KEPT, 1.0, "s", PREDICTED),
        Value("A", "half", resource_change.KEPT, 3.0, "s", PREDICTED),
        Value("B", "half", resource_change.KEPT, None, "s", PREDICTED, note="does not fit: x"),
        Value("A", "half", resource_change.RECONSTRUCTED, 2.0, "s", PREDICTED),
        Value("B", "half", resource_change.RECONSTRUCTED, 4.0, "s", PREDICTED),
    ]
    held = results(*values)
    assert resource_change.gains(held) == {"half": {"A": 1.5}}
    (_, _, rows), (_, _, cells) = resource_change.report(held)
    assert rows[0][:6] == ("half", "2", "2.828", "1", "1.500", "1.500 (A)")
    assert [row[2] for row in cells] == ["3000 -> 2000", "does not fit -> 4000"]


def test_sokoban_refuses_a_device_whose_programs_it_does_not_enumerate():
    with pytest.raises(RollerError, match=r"ipu_mk2: expected a device of kind gpu or cpu, .*got kind 'bsp'"):
        running.run_suite(SUITES["sokoban"], Request(load_spec("ipu_mk2"), quick=True, pattern="EW1"))


def test_sokoban_s_values_are_the_comparison(tmp_path, monkeypatch):
    found = run_few("sokoban", tmp_path, monkeypatch)
    records = sokoban_suite.compared(found)
    assert [r.id for r in records] == ["EW1", "EW2"]
    for r in records:
        assert 0.99 < r.ratio < 2 and r.sokoban_considered > r.roller_considered > 0 and r.roller_priced > 0
    assert [v.kind for v in found.values if v.quantity == "processor time"] == [MEASURED] * 4


def test_an_ablation_concerns_the_operators_whose_time_changes():
    values = [
        Value(case, "time", series, seconds, "s", PREDICTED)
        for case, series, seconds in (
            ("M1", "as constructed", 2.0), ("M1", "no padding", 3.0), ("R0", "as constructed", 1.0),
            ("R0", "no padding", 1.0), ("M1", "no Winograd", 2.0),
        )
    ]  # fmt: skip
    slower = ablations.slow_downs(results(*values))
    assert slower["no padding"] == {"M1": 1.5, "R0": 1.0} and slower["no Winograd"] == {"M1": 1.0}
    assert ablations.concerned({**slower["no padding"], "tiny": 1.0005}) == {"M1": 1.5}
    rows = {row[0]: row for row in next(ablations.report(results(*values)))[2]}
    assert rows["no padding"][2:] == ("2", "1.2247", "1", "1.500", "1.500 (M1)", "0")
    assert rows["no Winograd"][2:] == ("1", "1.0000", "0", "-", "1.000 (M1)", "1")


def test_every_switch_of_construction_has_an_ablation():
    from roller.templates.common.options import _SWITCHES, ConstructOptions

    changed = {name for options in ablations.ABLATIONS.values() for name in options}
    assert set(_SWITCHES) - {"propagate_nan"} <= changed
    for name, options in ablations.ABLATIONS.items():
        assert (ConstructOptions(**options) == ConstructOptions()) == (name == ablations.WHOLE), name


def test_the_published_worth_of_ten_candidates_is_that_of_the_table():
    found = {v.case: v for v in ablations.published({"M0", "M1", "nothing"})}
    assert set(found) == {"M0", "M1"} and {v.kind for v in found.values()} == {PUBLISHED}
    assert found["M1"].value == pytest.approx(0.45018 / 0.3248)


def test_models_of_a_quick_run():
    pytest.importorskip("onnx")
    assert models.names(Request(V100, quick=True)) == list(models.QUICK)
    assert models.names(Request(V100, pattern="bert_*,lstm")) == [
        "bert_base",
        "bert_large",
        "bert_base_decomposed",
        "lstm",
    ]
    with pytest.raises(RollerError, match="models: expected cases"):
        running.run_suite(SUITES["models"], Request(V100, pattern="nothing"))


@pytest.mark.slow
def test_a_network_is_predicted_for_a_gpu_beside_the_library(tmp_path):
    pytest.importorskip("onnx")
    found = running.run_suite(SUITES["models"], Request(V100, True, "light_squeezenet", folder=tmp_path))
    mine, library = (found.of("time", series)["light_squeezenet"] for series in ("Roller", "library"))
    assert mine.low < mine.value < mine.high and library.value > 0 and "kernels" in mine.note
    assert {v.kind for v in found.values} == {PREDICTED}
    assert models.speed_ups(found)["light_squeezenet"] == pytest.approx(library.value / mine.value)
    assert "Speed-ups" in running.page(SUITES["models"], found)


def test_a_record_of_a_measured_network_becomes_values():
    pytest.importorskip("onnx")
    from benchmarks.onnx.measure import Record

    record = Record(
        "lstm-b1", "lstm", 1, error=1e-6, seconds={"roller": 0.5, "onnxruntime": 1.0},
        speed={"median": 2.0, "low": 1.9, "high": 2.1}, peak_bytes={"roller": 10, "onnxruntime": 20}, cold_s=3.0,
        warm_s=0.3, foreign=0.25,
    )  # fmt: skip
    held = results(*models.values_of(record))
    assert models.speed_ups(held) == {"lstm-b1": 2.0}
    assert held.of("time", "ONNX Runtime")["lstm-b1"].value == 1.0
    (_, columns, rows), (_, _, means), (_, _, busy) = models.report(held)
    assert busy == [("lstm-b1", "others kept 0.25 processors busy")]
    assert rows[0][0] == "lstm-b1" and rows[0][columns.index("speed-up")] == "2.000" and means[0][1] == "2.000"
    (failed,) = models.values_of(Record("x-b1", "x", 1, reason="no"))
    assert failed.value is None and failed.note == "no"
