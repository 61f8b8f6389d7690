"""What a client may ask of a step: what-ifs name devices, no files."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from roller.errors import RollerError
from roller.insight.whatif.scenario import parse_what_if_option
from roller.server.profile_stages import check_devices_of


def test_a_what_if_names_a_device_and_no_file() -> None:
    check_devices_of([parse_what_if_option(text) for text in ("device:device=h100", "amp", "cuda-graph")])
    for name in ("/etc/passwd", "../h100.yaml", "h100.yaml"):
        with pytest.raises(RollerError, match="device: expected a name"):
            check_devices_of([parse_what_if_option(f"device:device={name}")])
