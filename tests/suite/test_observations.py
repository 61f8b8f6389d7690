"""The fourteen observations on made-up studies: each holds on figures like the published ones, and fails on others."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.errors import RollerError
from roller.hardware import load_spec
from roller.insight.rate_card import HourlyRate, RateCard
from roller.suite.device_choice import device_costs
from roller.suite.observations import check_observations
from roller.suite.registry import MODELS, models_of
from roller.suite.studies import CLUSTERS, ClusterRow, Studies, saturation_batch

NAMES = ("resnet50", "seq2seq", "transformer")


def row_of(model, device, batch, **more):
    """Return a row like the published figures: the LSTM is idle half of the time and does not saturate."""
    lstm, large = model == "seq2seq", device == "titanxp"
    speed = batch**0.5 if lstm else 100 * batch / (batch + 0.3)
    row = {
        "model": model, "device": device, "batch": batch, "kind": "predicted", "fits": True, "unit": "samples",
        "throughput_per_s": speed * (2 if large else 1),
        "compute_utilisation": (0.30 if lstm else 0.97) + 0.001 * batch - (0.05 if large and lstm else 0),
        "peak_share": (0.2 if lstm else 0.5) + 0.001 * batch - (0.1 if large else 0),
        "kernels": [{"name": "norm", "calls": 9, "seconds": 1.0, "share": 0.1, "peak_share": 0.05}],
        "total_bytes": 10_000, "memory_bytes": {},
        "most_bytes": {"weights": 100, "gradients": 100, "feature maps": 500 * batch, "workspace": 50, "dynamic": 100},
    }  # fmt: skip
    return {**row, **more}


def cluster_rows(model, scale=None):
    for cluster, (devices, machines, bandwidth) in CLUSTERS.items():
        factor = 0.4 if bandwidth < 1e9 else 0.97 * devices
        if devices > 1 and scale is not None:
            factor = scale
        ratio = factor if devices > 1 else 1.0
        yield ClusterRow(
            model, "p4000", 32, cluster, devices, machines, 100.0 * ratio, 0.97, 10_100 if ratio > 1 else 10_000
        )


def studies_of(names=NAMES, devices=("p4000", "titanxp"), change=lambda row: row, clusters=None, batches=(1, 2, 4, 8)):
    sweeps = [
        change(row_of(model, device, batch, fits=batch != batches[-1]))
        for model in names for device in devices for batch in batches
    ]  # fmt: skip
    rows = [row for model in names for row in (clusters or cluster_rows)(model)]
    specs = {name: load_spec(name) for name in devices}
    return Studies(tuple(sweeps), tuple(rows), (), {m.name: m for m in models_of(names)}, specs)


def words(studies):
    return [one.word for one in check_observations(studies)]


def test_figures_like_the_published_ones_make_all_observations_hold_but_the_one_on_implementations():
    found = check_observations(studies_of())
    assert [(one.number, one.word) for one in found if one.word != "holds"] == [(3, "cannot be said here")]
    assert found[2].missing == "There is one implementation of each model, in PyTorch."
    assert all(one.agreeing == one.decisive > 0 for one in found if one.number != 3)
    (case,) = [case for case in found[4].cases if case.name == "seq2seq, p4000"]
    assert case.figures == "LSTM, active 30.4 % at batch 4"
    json.dumps([one.to_dict() for one in found])


@pytest.mark.parametrize(
    "number, change",
    [
        (1, lambda row: {**row, "throughput_per_s": 1 / row["batch"]}),
        (2, lambda row: {**row, "throughput_per_s": float(row["batch"])}),
        (4, lambda row: {**row, "compute_utilisation": 0.97 - 0.02 * row["batch"]}),
        (5, lambda row: {**row, "compute_utilisation": 0.98}),
        (6, lambda row: {**row, "peak_share": 0.6 - 0.02 * row["batch"]}),
        (7, lambda row: {**row, "peak_share": 0.5}),
        (8, lambda row: {**row, "kernels": []}),
        (9, lambda row: {**row, "peak_share": 0.9 if row["device"] == "titanxp" else 0.3}),
        (10, lambda row: {**row, "most_bytes": {"weights": 10**9, "feature maps": 10**8}}),
        (11, lambda row: {**row, "most_bytes": {**row["most_bytes"], "feature maps": row["batch"] ** 2}}),
    ],
)  # fmt: skip
def test_other_figures_make_an_observation_fail_with_its_cause(number, change):
    found = check_observations(studies_of(change=change))[number - 1]
    assert (found.number, found.word) == (number, "does not hold") and found.possible_cause
    assert found.agreeing < found.decisive


def test_an_lstm_that_keeps_the_device_active_is_said_with_the_reason():
    found = check_observations(studies_of(change=lambda row: {**row, "compute_utilisation": 0.98}))[4]
    assert [case.name for case in found.cases if not case.agrees] == ["seq2seq, p4000", "seq2seq, titanxp"]
    assert found.possible_cause.startswith("PyTorch runs a whole LSTM layer in one call of cuDNN")


def test_one_translation_model_may_be_used_more_by_the_larger_device_and_no_other():
    def used_more(name):
        return lambda row: {**row, "peak_share": 0.9} if (row["model"], row["device"]) == (name, "titanxp") else row

    assert words(studies_of(change=used_more("transformer")))[8] == "holds"
    assert words(studies_of(change=used_more("resnet50")))[8] == "does not hold"
    assert words(studies_of(devices=("p4000",)))[8] == "cannot be said here"


def test_slow_and_fast_networks():
    fine = check_observations(studies_of(clusters=lambda model: cluster_rows(model, 3.9)))[11]
    assert fine.word == "does not hold"  # a slow network that scales is no cause for a faster one
    slow = [case for case in fine.cases if "1 Gb/s" in case.name]
    assert [case.agrees for case in slow] == [False] * 3 and slow[
        0
    ].figures == "3.90 times one device, expected: less than one"
    assert words(studies_of(clusters=lambda model: cluster_rows(model, 0.9)))[11] == "does not hold"


def test_utilisation_and_memory_of_a_device_among_several():
    def waiting(model):
        return [dataclasses.replace(r, compute_utilisation=0.5 if r.devices > 1 else 0.9) for r in cluster_rows(model)]

    def larger(model):
        return [dataclasses.replace(r, total_bytes=r.total_bytes * r.devices) for r in cluster_rows(model)]

    assert words(studies_of(clusters=waiting))[12:] == ["does not hold", "holds"]
    assert words(studies_of(clusters=larger))[12:] == ["holds", "does not hold"]


def test_models_that_were_not_observed_are_shown_and_do_not_decide():
    broken = lambda row: {**row, "throughput_per_s": 1 / row["batch"]} if row["model"] == "ncf" else row  # noqa: E731
    found = check_observations(studies_of((*NAMES, "ncf"), change=broken))[0]
    assert found.holds and found.decisive == 6 and len(found.cases) == 8
    alone = check_observations(studies_of(("ncf",)))[0]
    assert alone.holds is None and alone.missing.startswith("No model of the first edition")
    assert [name for name, model in MODELS.items() if model.edition == 0] == ["ncf", "decoder", "diffusion_unet"]


def test_a_sweep_that_ends_before_memory_does_says_nothing_of_saturation():
    whole = studies_of()
    cut = dataclasses.replace(whole, sweeps=tuple(row for row in whole.sweeps if row["fits"]))
    assert words(whole)[1] == "holds" and words(cut)[1] == "cannot be said here"


def test_the_batch_at_which_throughput_saturates():
    rows = [{"batch": b, "throughput_per_s": t} for b, t in ((1, 10.0), (2, 19.0), (4, 22.0), (8, 22.5))]
    assert saturation_batch(rows) == 4 and saturation_batch(rows[:2]) is None
    late = [{"batch": b, "throughput_per_s": t} for b, t in ((1, 10.0), (2, 10.5), (4, 20.0), (8, 20.5))]
    assert saturation_batch(late) == 4  # the first doubling gains as little, but a later one gains much


def test_studies_are_read_as_they_were_written():
    made = studies_of()
    again = Studies.from_dict(json.loads(json.dumps(made.to_dict())))
    assert check_observations(again) == check_observations(made) and again.clusters == made.clusters
    with pytest.raises(RollerError, match="studies: expected what `roller suite observe --out` writes"):
        Studies.from_dict({"sweeps": []})


def test_the_cheapest_device_at_prices_and_the_fastest_without():
    rates = RateCard(
        "EUR", {"p4000": HourlyRate(0.36, "x", "2026-01-01"), "titanxp": HourlyRate(1.0, "x", "2026-01-01")}
    )
    rows = list(device_costs(studies_of(("resnet50",)), rates))
    best = 100 * 4 / 4.3
    assert [(row.device, row.batch, row.cheapest) for row in rows] == [("p4000", 4, True), ("titanxp", 4, False)]
    assert rows[0].cost == pytest.approx(1e6 / best * 0.36 / 3600) and rows[1].relative == pytest.approx(2.0)
    assert [row.cheapest for row in device_costs(studies_of(("resnet50",)))] == [False, True]


def observe(*words):
    return CliRunner().invoke(app, ["suite", "observe", *map(str, words)], env={"COLUMNS": "200"})


def test_saved_studies_are_judged_without_a_prediction(tmp_path):
    path, prices, out = (tmp_path / name for name in ("studies.json", "prices.yaml", "out.json"))
    path.write_text(json.dumps(studies_of().to_dict()))
    prices.write_text("currency: EUR\ndevices:\n  p4000: {per_hour: 0.36, source: mine, date: 2020-01-31}\n")
    done = observe("--from", path, "--prices", prices, "--out", out)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert " 5. holds (6 of 6 cases): Compute utilisation of LSTM models stays low" in done.stdout
    assert any(line.startswith("which device is cheapest at your prices") and "p4000 3" in line for line in lines)
    assert "No price for titanxp" in done.stdout and "The price of p4000 is from 2020-01-31" in done.stdout
    assert any(line.split()[:5] == ["resnet50", "p4000", "32", "2", "machines,"] and "0.40" in line for line in lines)
    data = json.loads(out.read_text())
    assert data["kind"] == "predicted" and data["currency"] == "EUR" and len(data["choice"]) == 6
    assert observe("a3c", "--from", path).exit_code != 0
    path.write_text("{}")
    assert "expected what `roller suite observe --out` writes" in str(observe("--from", path).exception)


@pytest.mark.slow
def test_the_command_says_what_holds(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "observe.json"
    done = CliRunner().invoke(
        app, ["suite", "observe", "a3c", "--reduced", "--most", "4", "--out", str(path)], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    assert " 3. cannot be said here: Which of two implementations is faster" in done.stdout
    data = json.loads(path.read_text())
    assert [one["number"] for one in data["observations"]] == list(range(1, 15)) and data["kind"] == "predicted"
    assert [(row["device"], row["batch"]) for row in data["sweeps"]] == [
        (device, batch) for device in ("p4000", "titanxp") for batch in (1, 2, 4)
    ]
    one, two = (row["throughput"] for row in data["clusters"][:2])
    assert one < two <= 2 * one
    assert {row["change"]: row["speedup"] is None for row in data["changes"]} == {
        "fp16": False, "bf16": True, "fused kernels": False
    }  # fmt: skip


def test_processors_and_several_of_one_kind_are_refused():
    done = CliRunner().invoke(app, ["suite", "observe", "a3c", "--device", "2xv100"])
    assert done.exit_code != 0 and "expected GPUs, one of each" in str(done.exception) + done.stderr
