"""``roller serve``: the devices that its page offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from roller.cli.serve import _offered_devices, _spec_files_by_name
from roller.cli.usage_error import UsageError
from roller.hardware import load_spec


def test_the_page_offers_devices_that_steps_run_on_and_the_chosen_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roller.hardware.list_specs", lambda: ("ipu_mk2", "v100"))
    names = [spec.name for spec in _offered_devices([load_spec("v100"), load_spec("cpu")])]
    assert names == ["v100", "cpu"]
    text = (Path(__file__).parents[2] / "hardware_specs" / "v100.yaml").read_text()
    assert text.count("units: {datasheet: 80") == 1
    (tmp_path / "mine.yaml").write_text(text.replace("units: {datasheet: 80", "units: {datasheet: 81"))
    mine = load_spec(tmp_path / "mine.yaml")
    assert _offered_devices([mine]) == [mine], "a file replaces the device of its name"
    assert _spec_files_by_name([str(tmp_path / "mine.yaml"), "cpu"], ["v100", "cpu"]) == {
        "v100": str(tmp_path / "mine.yaml")
    }
    with pytest.raises(UsageError, match="expected one specification of the name v100, got two"):
        _spec_files_by_name([str(tmp_path / "mine.yaml"), "v100"], ["v100", "v100"])
