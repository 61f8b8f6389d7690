"""``roller serve``: the devices that its page offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from roller.cli.serve import _offered_devices
from roller.cli.usage import UsageError
from roller.hardware import load_spec


def test_the_page_offers_devices_by_name_and_no_file_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roller.hardware.list_specs", lambda: ("ipu_mk2", "v100"))
    names = [spec.name for spec in _offered_devices([load_spec("v100"), load_spec("cpu")])]
    assert names == ["v100", "cpu"]
    text = (Path(__file__).parents[2] / "hardware_specs" / "v100.yaml").read_text()
    for old, new in (
        ("name: v100", "name: mine"),
        ("units: {datasheet: 80", "units: {datasheet: 81"),
    ):  # unknown; another device of the name
        assert text.count(old) == 1
        (tmp_path / "mine.yaml").write_text(text.replace(old, new))
        with pytest.raises(UsageError, match="expected the name of a device, got a file of"):
            _offered_devices([load_spec(tmp_path / "mine.yaml")])
