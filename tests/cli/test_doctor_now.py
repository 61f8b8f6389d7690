"""``roller doctor`` names what disturbs the machine now, and what disturbed the times it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import roller
from roller.cli import find_contradicted_spec_field as verb
from roller.cli.main import app
from roller.runtime.cache import KernelCache
from tests.runtime.cache_entries import make_entry, make_key
from tests.runtime.fake_clock import FakeClock


@pytest.fixture
def doctor(monkeypatch):
    def run(others, *words):
        monkeypatch.setattr(verb, "SystemClock", lambda: FakeClock(others=others))
        done = CliRunner().invoke(app, ["doctor", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_the_disturbance_is_named(doctor):
    expr = roller.ops.elementwise("relu", (64,))
    entry = make_entry(expr, measured_s=1e-3)
    why = "other programs kept 1.9 of 2 processors busy while it was timed: 1 of 9 windows were quiet"
    first = replace(entry.candidates[0], status="doubtful", reason=why)
    entry = replace(entry, artifact=replace(entry.artifact, device="cpu"), candidates=(first, *entry.candidates[1:]))
    KernelCache().store(make_key(expr), entry)
    text = doctor(1.8, "--outdated")
    assert "left out: 1 doubtful time: other programs kept 1.9 of 2 processors busy" in text
    assert "now: other programs kept 1.8 of 2 processors busy; what is timed now may be doubtful" in text
    data = json.loads(doctor(1.8, "--outdated", "--json"))
    assert data["doubtful"] == [{"disturbance": why.partition(" while ")[0], "times": 1}]
    assert data["now"] == "other programs kept 1.8 of 2 processors busy"


def test_a_quiet_machine_and_one_elsewhere_are_not_talked_of(doctor):
    assert "now:" not in doctor(0.0)
    assert "now:" not in doctor(1.8, "--device", "v100")
    assert json.loads(doctor(0.0, "--json"))["now"] is None
