"""The benchmarks' own arithmetic, and that each runs on one operator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import common
import construct
import model_v100

from roller.hardware import load_spec

ROOT = Path(__file__).parents[2]


def run(script, *arguments):
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_operators_are_picked_by_pattern():
    assert len(common.operators()) == 119
    assert [r["id"] for r in common.operators("M0, R*")] == ["M0", "R0", "R1", "R2", "R3"]
    with pytest.raises(common.typer.BadParameter, match="none of 119 matches 'Z9'"):
        common.operators("Z9")


def test_resident_blocks_counts_registers_per_scheduler():
    build_cuda = pytest.importorskip("build_cuda", reason="needs TVM")
    v100 = load_spec("v100")
    # 7 warps of 96 registers: 21 warps fit, in parts of 5 per scheduler, so 20: two blocks, not three
    assert build_cuda.resident_blocks(v100, 224, 96, 0) == 2
    assert build_cuda.resident_blocks(v100, 256, 128, 0) == 2
    assert build_cuda.resident_blocks(v100, 256, 32, 49152) == 2  # scratchpad
    assert build_cuda.resident_blocks(v100, 32, 16, 0) == 32  # blocks of a unit


def test_rank_correlation_and_error():
    assert model_v100.spearman([1, 2, 3, 4], [1, 4, 9, 16]) == 1.0
    assert model_v100.spearman([1, 2, 3], [3, 2, 1]) == -1.0
    assert model_v100.error(1.2, 1.0) == pytest.approx(0.2)


def test_roofline_is_what_must_move_or_be_computed():
    v100 = load_spec("v100")
    rows = {r["id"]: r for r in common.operators("E0,M4,P3")}
    seconds = {n: model_v100.roofline_s(construct.roller.ops.from_spec(r), r["flops"], v100) for n, r in rows.items()}
    layer = v100.layer("global")
    assert seconds["M4"] == pytest.approx(2 * 65536 * 1024 * 1024 / (128 * 80 * v100.clock_hz))
    elements = construct.roller.ops.from_spec(rows["E0"]).output_tensors[0].elements
    assert seconds["E0"] == pytest.approx(8 * elements / layer.bandwidth_bytes_per_s)
    # a 1x1 pool of stride 2 skips every other row
    whole = sum(t.nbytes for t in construct.roller.ops.from_spec(rows["P3"]).inputs) / layer.bandwidth_bytes_per_s
    assert seconds["P3"] < whole


def prediction(name, predicted_ms, paper_ms, raw_ms, best_ms):
    return model_v100.Prediction(name, predicted_ms, 0.9, {"paper": paper_ms, "raw": raw_ms}, best_ms, "compute", "")


def test_class_limits_judge_each_state():
    found = [prediction("C0", 1.0, 1.1, 2.0, 1.0), prediction("C1", 3.0, 3.0, 3.0, 3.0), prediction("D0", 1, 2, 2, 2)]
    checks = {c.name: c.ok for c in model_v100.class_checks(found)}
    assert checks["C against Roller, paper"] is True
    assert checks["C against Roller, raw"] is False
    assert checks["D against Roller, raw"] is None  # judged by its window


def test_the_spec_states_the_errors_that_are_found():
    spec = load_spec("v100").with_overrides({"accuracy.prediction_error": 0.1, "accuracy.compute_error": 0.15})
    found = [
        prediction("C0", 1.0, 9.0, 1.105, 1.0),
        prediction("C1", 1.0, 9.0, 0.905, 1.0),
        prediction("D0", 1, 9, 9, 9),
    ]
    checks = {c.name: (c.value, c.ok) for c in model_v100.accuracy_checks(found, spec)}
    assert checks == {
        "accuracy, all": ("0.100 (2 operators, raw)", True),
        "accuracy, bound by compute": ("0.100 (2 operators, raw)", False),
    }


def test_windows_are_between_the_best_system_and_roller():
    found = [prediction("D0", 1.0, 2.0, 1.5, 1.2), prediction("D1", 0.5, 2.0, 1.5, 1.2), prediction("M0", 2.5, 2, 2, 1)]
    assert [c.ok for c in model_v100.window_checks([*found, prediction("E0", 9, 1, 1, 1)])] == [True, False, False]


def test_construct_is_compared_with_another_checkout(tmp_path):
    out = tmp_path / "construct.json"
    done = run("construct.py", "--filter", "M2", "--devices", "v100", "--against", ROOT, "--json", out)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(out.read_text())["v100"]
    assert found["id"] == "M2" and found["same"] and min(found["ms"], found["other_ms"]) > 0
    refused = run("construct.py", "--filter", "M2", "--against", tmp_path)
    assert refused.returncode == 1 and "no checkout of roller" in refused.stderr


def test_construct_reports_every_device_without_tvm(tmp_path):
    out = tmp_path / "c.json"
    done = run("construct.py", "--filter", "M2,R3", "--devices", "v100,k80", "--no-pools", "--json", str(out))
    assert done.returncode == 0, done.stderr
    assert "tvm imported: no" in done.stdout
    data = json.loads(out.read_text())
    assert {d: [r["programs"] for r in rows] for d, rows in data.items()} == {"v100": [10, 10], "k80": [10, 10]}


def test_unwritable_output_is_refused_before_any_work(tmp_path):
    done = run("construct.py", "--json", str(tmp_path / "no" / "c.json"))
    assert done.returncode != 0 and "does not exist" in done.stderr + done.stdout


def test_build_cuda_reports_the_compilers_numbers(tmp_path):
    from roller.backends.cuda import toolchain

    if toolchain.available():
        pytest.skip(toolchain.available())
    out = tmp_path / "b.json"
    done = run("build_cuda.py", "--filter", "C36,R2", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    programs = json.loads(out.read_text())["programs"]
    assert set(programs) == {"C36", "R2"}
    for p in programs.values():
        assert p["spill_bytes"] == 0
        assert abs(p["scratchpad_bytes"] - p["scratchpad_predicted_bytes"]) <= 64
        assert p["registers"] <= p["registers_predicted"] + 24


def test_launch_times_every_way_to_call_and_the_forks(tmp_path):
    from roller_runtime.cpu import threads

    out = tmp_path / "l.json"
    done = run("launch.py", "--rounds", "2", "--sleeps", "0", "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = json.loads(out.read_text())
    ways = {name.split(": ")[1] for name in seconds if "of" not in name.split(": ")[0]}
    assert ways == {"the kernel's foreign function", "bound", "checked, out=", "checked, new output", "NumPy, out="}
    assert ("matmul of one task per core: bound" in seconds) == (len(threads.processors()) > 1)
    assert all(len(s) == 2 and min(s) > 0 for s in seconds.values())
    assert "slowest checked call" in done.stdout
