"""A machine nobody probed: said once, on standard error, and its predictions are as uncertain as its rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.cli.probe import probed_spec_yaml
from roller.hardware import load_spec
from roller.hardware.detect_cpu_spec import UNPROBED_ERROR, detect_cpu_without_probe, is_probed
from roller.hardware.probed_profile_location import profile_path
from roller.hardware.sections import UNVALIDATED_ERROR, Accuracy
from roller.probing import MeasuredValue, spec_to_yaml
from roller.probing.run_probes import ProbeReport

PREDICT = ("predict", "matmul(64, 64, 64)", "--tile", "register=4,16", "--json")


@pytest.fixture
def profiles(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path / "profiles"))
    return tmp_path / "profiles"


def test_what_to_run_is_said_once_per_machine(profiles):
    first, second = (CliRunner().invoke(app, [*PREDICT, "--device", "cpu"]) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert "predictions may be off by a factor of 2.0. Run `roller probe cpu` (about 50 s)" in first.stderr
    assert second.stderr == ""
    assert first.stdout == second.stdout
    assert not is_probed(load_spec("cpu"))
    for _ in range(2):  # here as often as it is asked: who lists the devices wants to know
        assert "Run `roller probe cpu` (about 50 s)" in CliRunner().invoke(app, ["devices"]).stdout


def test_other_devices_and_probed_machines_are_not_told(profiles):
    assert CliRunner().invoke(app, [*PREDICT, "--device", "cpu-avx512"]).stderr == ""
    here = detect_cpu_without_probe()
    path = profile_path(here.machine)
    path.parent.mkdir(parents=True)
    path.write_text(spec_to_yaml(here, path.stem))
    assert is_probed(load_spec("cpu"))
    assert CliRunner().invoke(app, [*PREDICT, "--device", "cpu"]).stderr == ""
    assert "roller probe" not in CliRunner().invoke(app, ["devices"]).stdout
    assert load_spec("cpu").accuracy == here.accuracy, "the errors of the profile are those of probed machines"


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path / "file" / "profiles"))
    for _ in range(2):
        done = CliRunner().invoke(app, [*PREDICT, "--device", "cpu"])
        assert done.exit_code == 0 and "This is said once." in done.stderr


def test_assumed_rates_widen_the_interval_and_not_the_ranking(profiles):
    assumed, base = load_spec("cpu"), detect_cpu_without_probe()
    assert assumed.accuracy.prediction_error == UNPROBED_ERROR > base.accuracy.prediction_error
    assert assumed.sources["accuracy.prediction_error"] == "assumed"
    assert assumed.accuracy.ranking_error == base.accuracy.ranking_error
    assert assumed.accuracy.same_kernel_error == base.accuracy.same_kernel_error


def test_a_probed_profile_keeps_its_errors_until_somebody_edits_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLER_PROFILE_DIR", str(tmp_path))
    base = replace(detect_cpu_without_probe(), accuracy=Accuracy(0.2, ranking_error=0.1))
    base = replace(base, source_items=(*base.source_items, ("accuracy.prediction_error", "measured")))
    bandwidth = "memory_layers.dram.bandwidth_bytes_per_s"
    report = ProbeReport({bandwidth: MeasuredValue(12.345678e9, 0.02, 9)}, {}, {})
    path = profile_path(base.machine)
    path.write_text(probed_spec_yaml(base, report, path.stem))
    assert load_spec(path).accuracy == base.accuracy and not load_spec("cpu").doubt
    path.write_text(path.read_text().replace("measured: 1.235e+10", "measured: 9.0e+10"))
    for edited in (load_spec(path), load_spec("cpu")):
        assert edited.values()[bandwidth] == 9e10
        assert edited.accuracy.prediction_error >= UNVALIDATED_ERROR
        # A profile whose errors nobody has validated has them assumed, whatever numbers it has.
        unvalidated = detect_cpu_without_probe().accuracy.prediction_error == edited.accuracy.prediction_error
        assert "errors assumed: found with other numbers" in edited.title or (edited.name == "cpu" and unvalidated)
