"""What a client may ask of a step, and what an answer says where a part of it cannot be computed."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from roller.errors import RollerError
from roller.insight.trace.progress import Cancelled
from roller.insight.whatif.parse_what_if_scenarios import parse_what_if_option
from roller.server.compute_profile_stages import _StageComputer, check_what_if_devices, requested_stages
from roller.server.profile_request import ProfileRequest


def test_a_what_if_names_a_device_and_no_file() -> None:
    check_what_if_devices([parse_what_if_option(text) for text in ("device:device=h100", "amp", "cuda-graph")])
    for name in ("/etc/passwd", "../h100.yaml", "h100.yaml"):
        with pytest.raises(RollerError, match="device: expected a name"):
            check_what_if_devices([parse_what_if_option(f"device:device={name}")])


class _Profile:
    """A profile whose step cannot be traced at another batch."""

    def __init__(self, error: RollerError) -> None:
        self._error = error

    def batch_curve(self) -> None:
        raise self._error


def test_a_curve_that_cannot_be_computed_is_no_error_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ProfileRequest(1, "train.py", ".", wanted=("curve",))

    def curve_of(error: RollerError) -> object:
        monkeypatch.setattr(_StageComputer, "_profile", lambda self: _Profile(error))
        [(stage, make)] = requested_stages(request, {})
        assert stage == "curve"
        return make()

    assert curve_of(RollerError("no DataLoader")) == {"error": "no DataLoader"}
    with pytest.raises(Cancelled):
        curve_of(Cancelled("by a newer request"))
