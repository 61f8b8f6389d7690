"""The suites of whole models: their values, tables, figures and errors, on few values or reduced models."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import pytest

from benchmarks.reproduced.rows import RESULTS
from benchmarks.suites import forecast, skyline, training, whatif
from benchmarks.suites.registry import SUITES
from benchmarks.suites.running import page, run_suite
from benchmarks.suites.suite import Request
from benchmarks.suites.values import COUNTED, MEASURED, PREDICTED, PUBLISHED, Results, Value, read
from roller.errors import RollerError
from roller.hardware import load_spec
from roller.insight.step_profile.batch_curve import BatchPoint, fit_batch_line

HEAD = {
    "device": "v100", "quick": True, "date": "2026-01-01T00:00:00", "seed": 0,
    "environment": {"roller": "0"}, "revision": "x", "suite": "x",
}  # fmt: skip


def request(device="v100", pattern="*"):
    return Request(load_spec(device), quick=True, pattern=pattern)


def times(case, ours, theirs, note=""):
    return [
        Value(case, "time", forecast.ROLLER, ours, "s", PREDICTED, 0.9 * ours, 1.1 * ours, note),
        Value(case, "time", forecast.NEUSIGHT, theirs, "s", PUBLISHED),
    ]


def test_errors_of_forecasts_leave_guessed_models_out():
    values = [*times("a", 1.1, 1.0), *times("b", 1.0, 2.0), *times("c", 9.0, 1.0, "guessed")]
    assert forecast.ratios(values) == {"a": pytest.approx(1.1), "b": 0.5}
    found = {v.quantity: v.value for v in forecast._errors(load_spec("v100"), values) if "language" in v.case}
    assert found == {"mean error": pytest.approx(0.3), "largest error": pytest.approx(0.5)}


def test_a_device_without_published_times_says_so():
    pytest.importorskip("torch")
    values = list(forecast.predict(request("h100", "bert_large-inf-512-8")))
    ours, theirs, *rest = values
    assert ours.kind == PREDICTED and ours.low < ours.value < ours.high
    assert theirs.value is None and theirs.note == "no time of h100 is in the table"
    assert next(v for v in rest if v.quantity == "mean error").note == "no time of h100 is in the table"
    text = page(forecast.SUITE, Results(HEAD, values))
    assert "no time of h100" in text and forecast.CAVEAT in text


def test_the_table_of_published_times_is_that_of_four_devices():
    time = pytest.importorskip("benchmarks.insight.time", reason="needs torch")
    assert len(time.cases(time.PUBLISHED)) == 37
    with time.PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["device"] for row in rows} == set(time.DEVICES)


def test_the_line_and_its_errors_at_the_nearest_batches():
    points = [BatchPoint(n, 0.5 * n + 1.0, n / (0.5 * n + 1.0), 100 * n + 7, 0, True) for n in (8, 16, 24, 32, 64)]
    points[-1] = points[-1]._replace(throughput=1.25 * points[-1].throughput, allocated_bytes=2 * 6407)
    values = list(skyline._lines("m", "line from 8", fit_batch_line(points[:3]), points, 8, PREDICTED))
    found = {v.quantity: v for v in values if v.case == "m"}
    assert found["throughput, largest error"].value == pytest.approx(0.2)
    assert found["throughput, mean error"].value == pytest.approx(0.1)
    assert found["memory, largest error"].value == pytest.approx(0.5)
    assert found["memory, mean error"].note == "At 32, 64."
    at = {(v.case, v.quantity): v.value for v in values}
    assert at["m, batch 64", "time"] == pytest.approx(33.0) and at["m, batch 64", "memory"] == pytest.approx(6407)
    published = [v for v in skyline._published() if v.kind == PUBLISHED]
    assert [v.value for v in published] == list(skyline.PUBLISHED_ERRORS.values())


def test_an_unstable_step_enters_no_line(monkeypatch):
    measured_step = pytest.importorskip("roller.insight.measured_step")

    def step(_, batch, budget_s):
        return SimpleNamespace(
            iteration_s=float(batch), lower_s=0.9 * batch, upper_s=1.1 * batch, process_peak_bytes=7 * batch,
            is_stable=batch != 8, notes=("Steps drift.",),
        )  # fmt: skip

    monkeypatch.setattr(measured_step, "measure_step", step)
    values = list(skyline.measure(request("cpu-avx512")))
    (unstable,) = [v for v in values if v.value is None and v.quantity == "time"]
    assert unstable.case == "gnmt, batch 8" and unstable.note == "Steps drift."
    assert next(v.note for v in values if v.quantity == "throughput, mean error" and v.case == "gnmt") == "At 1."


def test_a_gain_that_is_rounding_is_zero_and_says_why(monkeypatch):
    answer = SimpleNamespace(baseline_us=1.0, lower_us=0.9, upper_us=1.1, gain=-4.7e-15)
    monkeypatch.setattr(whatif, "what_if", lambda graph, *changes: answer)
    one = whatif._gain("gnmt, fused Adam", whatif.FACTORS, None, (), "batch 64", whatif.NO_GAIN)
    assert one.value == 0.0 and one.note == f"batch 64. {whatif.NO_GAIN}"
    other = whatif._gain("gnmt, AMP", whatif.MODEL, None, (), "batch 64")
    assert other.value == 0.0 and other.note == "batch 64", "the reason is that of one rule"


def test_published_what_ifs_are_given_for_their_own_device_alone(monkeypatch):
    answer = SimpleNamespace(baseline_us=1.0, lower_us=0.9, upper_us=1.1, gain=0.2)
    monkeypatch.setattr(whatif, "what_if", lambda graph, *changes: answer)
    monkeypatch.setattr(whatif, "graph_optimizer", lambda model: "sgd")
    published = {
        device: [v.value for v in whatif._of_model("densenet121", None, 32, request(device)) if v.kind == PUBLISHED]
        for device in ("rtx2080ti", "v100")
    }
    assert published == {"rtx2080ti": [0.127, 0.07], "v100": []}


def test_gains_are_a_table_of_ours_and_published_ones():
    values = [Value("bert_large, AMP", "gain", whatif.MODEL, 0.2, "", PREDICTED, 0.1, 0.3),
              Value("bert_large, AMP", "gain", whatif.DAYDREAM, 0.172, "", PUBLISHED)]  # fmt: skip
    ((title, _, rows),) = whatif.sections(Results(HEAD, values))
    assert title == "Gain" and [row[3:5] for row in rows] == [("20.0 %", "10.0 % to 30.0 %"), ("17.2 %", "-")]


def test_measured_what_ifs_are_a_table_of_predicted_and_measured_steps():
    values = [
        Value("p, SGD", "time", "before", 0.2, "s", MEASURED), Value("p, SGD", "time", "changed", 0.1, "s", MEASURED),
        Value("p, SGD", "time", "changed", 0.11, "s", PREDICTED),
    ]  # fmt: skip
    ((title, _, rows),) = whatif.sections(Results(HEAD, values))
    assert title == "Changed steps" and rows == [("p, SGD", "200", "110", "100", "+10.0 %")]


def test_training_has_published_figures_beside_its_own_device_alone():
    row = {
        "model": "faster_rcnn", "batch": 1, "fits": True, "unit": "images", "throughput_per_s": 5.0,
        "throughput_lower_per_s": 4.0, "throughput_upper_per_s": 6.0, "compute_utilisation": 1.0, "peak_share": 0.5,
        "total_bytes": 2**30, "most_bytes": {"weights": 25, "feature maps": 75},
    }  # fmt: skip
    pytest.importorskip("torch")
    values = list(training._values_of(row, PREDICTED, "p4000"))
    assert [v.value for v in values if v.kind == PUBLISHED] == [2.3, 0.894, 0.903, 0.589, 0.709]
    assert next(v.value for v in values if v.quantity.startswith("feature maps")) == 0.75
    assert {v.kind for v in training._values_of(row, PREDICTED, "h100")} == {PREDICTED}
    tables = {title: rows for title, _, rows in training.sections(Results(HEAD, values))}
    assert tables["Published figures beside"][0] == ("faster_rcnn, batch 1", "throughput", "TBD", "2.3", "5")


def test_training_that_does_not_fit_has_no_figures():
    row = dict.fromkeys(("throughput_per_s", "throughput_lower_per_s", "throughput_upper_per_s"))
    row |= {"model": "a3c", "batch": 8, "fits": False, "unit": "frames"}
    pytest.importorskip("torch")
    (value,) = training._values_of(row, PREDICTED, "h100")
    assert value.value is None and value.note == "it does not fit"


@pytest.mark.parametrize("name", ["forecast-rtx3090", "whatif-rtx2080ti", "skyline-rtx2080ti", "training-p4000"])
def test_a_committed_run_is_drawn(name, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = read(RESULTS / "suites" / f"{name}.json")
    figure = pyplot.figure()
    SUITES[name.partition("-")[0]].draw(results, figure)
    figure.savefig(tmp_path / "figure.png")
    assert figure.axes and all(axes.has_data() for axes in figure.axes)
    pyplot.close(figure)


def test_a_pattern_that_matches_nothing_of_a_suite_is_refused():
    pytest.importorskip("torch")
    with pytest.raises(RollerError, match="expected cases, got none that match 'nothing'"):
        run_suite(training.SUITE, request("h100", "nothing"))


@pytest.mark.slow
def test_densenet_and_vgg_are_the_published_ones():
    networks = pytest.importorskip("benchmarks.insight.networks", reason="needs torch")
    sizes = {"vgg19": 143_667_240, "densenet121": 7_978_856}
    for name, count in sizes.items():
        model = networks.NETWORKS[name].build()
        assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.slow
def test_the_what_ifs_of_a_model_on_its_published_device():
    pytest.importorskip("torch")
    values = list(whatif.predict(request("rtx2080ti", "densenet121")))
    found = {v.key: v.value for v in values}
    gains = [v for v in values if v.quantity == "gain" and v.kind == PREDICTED]
    assert len(gains) == 3 and all(0 < v.value < 1 for v in gains)
    assert found["densenet121, restructured batch norm", "gain", whatif.DAYDREAM_REAL, PUBLISHED] == 0.07
    assert not any(v.kind == COUNTED for v in values)
