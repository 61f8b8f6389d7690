"""Measured rows: what they say of a step, what is refused, and how a budget is shared; one real model is slow."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from roller.cli.main import app
from roller.errors import RollerError
from roller.hardware import load_spec
from roller.insight.cost.arithmetic_pipe_work import PipeWork
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace
from roller.suite.mean_interval import MeanInterval
from roller.suite.measuring import Measurement, measure
from roller.suite.peak_utilisation import OperatorUse, TimedWork, longest_operators_below_average, peak_use_by_operator
from roller.suite.registry import MODELS, models_of
from roller.suite.sampling import Sample

SAMPLE = Sample(5, (0.1, 0.1, 0.1), 2, MeanInterval(0.1, 0.09, 0.11), 0.75)


def step_of(rows=512):
    x, w, y = (TensorRecord((rows, rows), (rows, 1), "float32", n) for n in range(3))
    size = 4 * rows * rows
    events = (AllocEvent(0, size, -1), AllocEvent(1, size, -1), AllocEvent(2, size, 0), FreeEvent(2, 1))
    storages = {0: Storage("input"), 1: Storage("parameter"), 2: Storage("activation")}
    operators = (
        Operator(0, "aten.mm.default", "forward", (x, w), (y,)),
        Operator(1, "aten.relu.default", "forward", (y,), (y,)),
    )
    return Trace(operators, events, storages, (0, 2), {"batch": rows})


def measurement(samples=(SAMPLE,), operator_s=(0.06, 0.02), **more):
    given = {
        "model": "a3c", "batch": 16, "unit": "frames", "units_per_sample": 2.0, "machine": "a processor",
        "samples": samples, "trace": step_of(), "operator_s": operator_s, "process_peak_bytes": 100 << 20,
        "spec": load_spec("cpu-avx2"),
    }  # fmt: skip
    return Measurement(**{**given, **more})


def test_throughput_utilisation_and_memory():
    found = measurement()
    assert found.throughput == pytest.approx(16 * 2 / 0.1)
    assert found.throughput_between == (pytest.approx(32 / 0.11), pytest.approx(32 / 0.09))
    assert found.compute_utilisation == pytest.approx(0.8)
    row = found.to_dict()
    size = 4 * 512 * 512
    held = {kind: n for kind, n in row["memory_bytes"].items() if n}
    assert held == {
        "weights": size, "inputs": size, "feature maps": size, "context": (100 << 20) - 3 * size
    } and row["total_bytes"] == 100 << 20  # fmt: skip
    assert (row["kind"], row["cpu_utilisation"], row["hardware_counters"]) == ("measured", 0.75, "unknown")
    assert row["samples_s"] == [[0.1, 0.1, 0.1]] and row["warm_up"] == [5] and row["disturbed"] == [2]
    json.dumps(row)


def test_the_share_of_the_peak_is_that_of_the_operations_over_the_active_time():
    spec = load_spec("cpu-avx2").sustained
    peak = 2 * spec.compute.ops_per_cycle_per_unit["fma"] * spec.units * spec.clock_hz
    found = measurement(spec=spec)
    assert found.peak_share_by_pipe["fma"] == pytest.approx(2 * 512**3 / peak / 0.08)


def test_a_tensor_process_that_is_smaller_than_its_tensors_has_no_context():
    assert measurement(process_peak_bytes=0).memory["context"] == 0


def test_without_stable_iterations_no_time_is_reported():
    unstable = dataclasses.replace(SAMPLE, note="sampling: expected steps that agree.")
    row = measurement((SAMPLE, unstable)).to_dict()
    times = ("throughput_per_s", "iteration_s", "compute_utilisation", "peak_share", "cpu_utilisation")
    assert [row[name] for name in times] == [None] * 5 and not row["is_stable"] and row["kernels"] == []
    assert row["notes"] == ["sampling: expected steps that agree."] and row["total_bytes"] == 100 << 20


def test_several_processes_give_the_interval_of_their_means():
    means = (0.1, 0.11, 0.12)
    samples = tuple(dataclasses.replace(SAMPLE, interval=MeanInterval(m, m, m)) for m in means)
    found = measurement(samples).interval
    assert found.mean == pytest.approx(0.11)
    assert (found.upper - found.lower) / 2 == pytest.approx(4.303 * 0.01 / 3**0.5, rel=1e-3)


def test_the_five_longest_operators_below_the_average():
    rows = [TimedWork("mm", 6.0, (PipeWork("fma", 1.0, 3.0),)), TimedWork("copy_", 1.0, ())]
    rows += [TimedWork(f"norm{n}", 0.5 + 0.1 * n, (PipeWork("fma", 1.0, 0.05),)) for n in range(6)]
    rows.append(TimedWork("norm5", 0.4, ()))
    uses = peak_use_by_operator(rows)
    assert uses[0] == OperatorUse("mm", 1, 6.0, 6.0 / 11.9, 0.5)
    assert uses[1] == OperatorUse("norm5", 2, 1.4, 1.4 / 11.9, pytest.approx(0.05 / 1.4))
    below = longest_operators_below_average(uses)
    assert [use.name for use in below] == ["norm5", "copy_", "norm4", "norm3", "norm2"]
    assert below[1].peak_share is None


class Watch:
    """A clock that tests move."""

    time = 0.0

    def now(self):
        return self.time


def test_models_share_what_is_left_of_the_budget():
    watch, given = Watch(), []

    def one(model, *, budget_s, **options):
        given.append((model.name, budget_s, options["seed"]))
        watch.time += 10.0 if model.name == "a3c" else 60.0
        return measurement(model=model.name)

    found = list(measure(models_of(["a3c", "ncf", "minigo"]), budget_s=120.0, clock=watch, one=one, seed=7))
    assert given == [("a3c", 40.0, 7), ("ncf", 55.0, 7), ("minigo", 50.0, 7)]
    assert [one.model for one in found] == ["a3c", "ncf", "minigo"]
    watch.time, given[:] = 0.0, []
    (twice,) = measure(models_of(["a3c"]), budget_s=120.0, clock=watch, one=one, repeat=2)
    assert given == [("a3c", 60.0, 0)] * 2 and len(twice.samples) == 2


def test_a_model_that_fails_does_not_end_the_others():
    def one(model, **_):
        if model.name == "a3c":
            raise RollerError("no memory")
        return measurement(model=model.name)

    said = []
    given = {"clock": Watch(), "one": one}
    found = list(
        measure(models_of(["a3c", "ncf"]), **given, failed=lambda name, error: said.append((name, str(error))))
    )
    assert [one.model for one in found] == ["ncf"] and said == [("a3c", "no memory")]
    with pytest.raises(RollerError, match="no memory"):
        list(measure(models_of(["a3c", "ncf"]), **given))


def test_the_command_prints_and_writes_a_run(monkeypatch, tmp_path):
    unstable = dataclasses.replace(SAMPLE, note="sampling: too much noise.")

    def one(model, **_):
        if model.name == "minigo":
            raise RollerError("no memory.")
        return measurement(samples[model.name], model=model.name)

    samples = {"a3c": (SAMPLE,), "ncf": (unstable,)}
    monkeypatch.setitem(measure.__kwdefaults__, "one", one)
    path = tmp_path / "run.json"
    words = ["suite", "run", "a3c", "ncf", "minigo", "--quick", "--out", str(path)]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "250"})
    assert done.exit_code == 1 and "failed: minigo: no memory." in done.stdout, done.output
    lines = done.stdout.splitlines()
    (row,) = [line.split() for line in lines if line.split()[:1] == ["a3c"] and "measured" in line]
    assert row[:5] == ["a3c", "here", "16", "320", "291"] and "80" in row and "75" in row
    assert (
        any("ncf" in line and "unstable" in line for line in lines) and "ncf: sampling: too much noise." in done.stdout
    )
    run = json.loads(path.read_text())
    assert (run["format"], run["run"]["sizes"], run["run"]["rule"]["window"]) == ("roller suite run", "reduced", 3)
    assert [r["is_stable"] for r in run["rows"]] == [True, False] and run["run"]["failed"] == ["minigo: no memory."]
    assert CliRunner().invoke(app, words[:4]).exit_code == 0


@pytest.mark.slow
def test_a_model_that_trains_in_a_process_of_its_own(monkeypatch):
    pytest.importorskip("torch")
    from roller.suite.measuring import measure_model
    from roller.suite.sampling import SamplingRule

    monkeypatch.setenv("ROLLER_TRUST_CLOCK", "1")
    rule = SamplingRule(window=2, tolerance=1e9, least=3, most=4, precise=1.0, limit=1e9)
    found = measure_model(MODELS["a3c"], rule=rule, budget_s=1.0)
    assert found.is_stable and 2 <= len(found.samples[0].samples_s) <= 4
    assert found.memory["weights"] == 4 * 43_539 and found.process_peak_bytes > 50 << 20
    assert 0 < found.compute_utilisation <= 1 and found.peak_share_by_pipe["fma"] > 0
    assert len(found.operator_s) == len(found.trace.steady()) and all(s > 0 for s in found.operator_s)
    assert found.samples[0].cpu_utilisation > 0
