"""Rounds of probes: what they agree on is written, what is noisy or doubted is refused and named. No timing here."""

from __future__ import annotations

import random

import pytest

from roller.errors import LaunchError
from roller.hardware import load_spec
from roller.probing import MeasuredValue, Probe, ProbeResult, median_of_good_rounds
from roller.probing.run_probes import run_probes
from tests.runtime.fake_clock import FakeClock

SPEC = load_spec("cpu-avx512")


def probe(name, function, *fields):
    return Probe(name, "cpu", fields, "cpu/clock.c", function)


def steady(path, value, noise, seed):
    """Return a device whose windows differ by ``noise`` and whose third round is disturbed."""
    draw = random.Random(seed)
    rounds = iter(range(100))

    def run(session):
        worse = {1: 0.7, -1: 1.6}[1 if path.endswith(("per_s", "hz")) else -1] if next(rounds) == 2 else 1.0
        return ProbeResult({path: MeasuredValue(value * worse * (1 + noise * draw.uniform(-1, 1)), noise, 20)})

    return probe("p", run, path)


@pytest.mark.parametrize(
    "path", ["clock_hz", "execution.fork_s", "execution.launch_s", "memory_layers.l3.bandwidth_bytes_per_s"]
)
def test_two_runs_agree_although_a_round_is_disturbed(path):
    value = SPEC.values()[path]
    runs = [run_probes([steady(path, value, 0.03, seed)], None, SPEC).values[path] for seed in (1, 2)]
    assert runs[0].value == pytest.approx(runs[1].value, rel=0.1)
    assert all(m.spread <= 0.1 and m.samples == 140 for m in runs)


def test_a_noisy_probe_is_refused_by_name_and_its_neighbour_is_not():
    draw = random.Random(3)

    def noisy(session):
        return ProbeResult({"clock_hz": MeasuredValue(3e9 * draw.uniform(0.5, 1.5), 0.4, 20)})

    report = run_probes([probe("noisy", noisy, "clock_hz"), steady("execution.fork_s", 2e-6, 0.01, 1)], None, SPEC)
    assert "clock_hz" not in report.values
    assert report.refused["clock_hz"].startswith("spread ")
    assert "at most 15 %" in report.refused["clock_hz"]
    assert list(report.values) == ["execution.fork_s"]


def test_rounds_that_contradict_each_other_are_refused_even_if_each_is_quiet():
    values = iter([10, 20, 30, 40, 50, 60, 70])

    def run(session):
        return ProbeResult({"memory_layers.l1.tlb_entries": MeasuredValue(next(values), 0.0, 20)})

    report = run_probes([probe("p", run, "memory_layers.l1.tlb_entries")], None, SPEC)
    assert "spread" in report.refused["memory_layers.l1.tlb_entries"]


def test_a_value_whose_proof_failed_is_refused_with_the_reason():
    def run(session):
        return ProbeResult({"clock_hz": MeasuredValue(3e9, 0.0, 20)}, doubts={"clock_hz": "not bound by latency."})

    report = run_probes([probe("p", run, "clock_hz")], None, SPEC)
    assert report.refused == {"clock_hz": "not bound by latency."}
    assert not report.values


def test_a_probe_that_cannot_run_does_not_stop_the_others():
    def broken(session):
        raise LaunchError("no threads")

    report = run_probes([probe("b", broken, "clock_hz"), steady("execution.fork_s", 2e-6, 0.0, 1)], None, SPEC)
    assert report.failed == {"b": "no threads"}
    assert list(report.values) == ["execution.fork_s"]


def test_what_the_schema_has_no_field_for_is_shown_not_written():
    def run(session):
        return ProbeResult(
            {"beside.divisions": MeasuredValue(1.0, 0.0, 1), "memory_layers.l1.colour": MeasuredValue(1.0, 0.0, 1)}
        )

    report = run_probes([probe("p", run)], None, SPEC, rounds=1)
    assert set(report.beside) == {"beside.divisions", "memory_layers.l1.colour"}
    assert not report.values


def test_progress_names_every_probe_of_every_round():
    seen = []
    run_probes([steady("execution.fork_s", 2e-6, 0.0, 1)], None, SPEC, 3, seen.append)
    assert seen == ["p"] * 3


def test_a_slow_machine_gets_fewer_rounds(monkeypatch):
    clock = iter(range(0, 10000, 10))
    monkeypatch.setattr("roller.probing.run_probes.time.perf_counter", lambda: float(next(clock)))
    seen = []
    run_probes([steady("execution.fork_s", 2e-6, 0.0, 1)], None, SPEC, 50, seen.append)
    assert 1 <= len(seen) < 50


def test_one_round_is_taken_as_it_is():
    assert median_of_good_rounds([MeasuredValue(2.0, 0.05, 7)], better=1) == MeasuredValue(2.0, 0.05, 7)
    assert median_of_good_rounds([MeasuredValue(2.0, 0.05, 7)]) == MeasuredValue(2.0, 0.05, 7)


def test_a_probe_that_others_disturbed_names_them_and_not_the_unit():
    """A proof that fails on a busy machine says nothing of the compiler or of the unit."""
    clock = FakeClock(others=1.9)
    blame = "as slow as one lane: the compiler did not vectorise the loop. Update it."

    def doubted(session):
        clock.spend(1.0)
        return ProbeResult({"compute.ops_per_cycle_per_unit.special": MeasuredValue(0.5, 0.01, 20)}, doubts={
            "compute.ops_per_cycle_per_unit.special": blame})  # fmt: skip

    def noisy(session):
        clock.spend(1.0)
        return ProbeResult({"clock_hz": MeasuredValue(3e9, 0.4, 20)})

    probes = [probe("d", doubted, "compute.ops_per_cycle_per_unit.special"), probe("n", noisy, "clock_hz")]
    report = run_probes(probes, None, SPEC, rounds=1, load=clock.load)
    named = "disturbed: other programs kept 1.9 of 2 processors busy while this was measured"
    assert report.refused == {
        "compute.ops_per_cycle_per_unit.special": f"{named}. Repeat on a quieter machine.",
        "clock_hz": f"{named}: spread 40 % of 20 windows, at most 15 % may be written. Repeat on a quieter machine.",
    }
    assert report.remarks == (f"this machine: {named}: what was refused says nothing of the device.",)
    quiet = run_probes(probes, None, SPEC, rounds=1, load=FakeClock(others=0.0).load)
    assert quiet.refused["compute.ops_per_cycle_per_unit.special"] == blame
    assert quiet.remarks == ()
