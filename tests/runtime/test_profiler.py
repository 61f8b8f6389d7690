"""Profiling on the null device: faults become records, the others finish, ranking follows the estimate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import roller
from roller import ops
from roller.artifact import KernelArtifact
from roller.backends.device_process import DeviceFault, DeviceProcess, resolve_device
from roller.backends.parse_device_names import DeviceProperties, find_matching_spec, parse_device_name
from roller.cli.main import main as cli
from roller.errors import LaunchError, SpecError
from roller.hardware import list_specs, load_spec
from roller.runtime.check_and_time_candidates import ProfileOptions, profile
from roller_runtime.core.kernel_argument import Argument
from tests.offenders import every

ROOT = Path(__file__).resolve().parents[2]
EXPR = ops.conv2d(1, 4, 9, 9, 6, 3, 3, stride=1, padding=(1, 1, 1, 1))
QUICK = ProfileOptions(timeout_s=1.5)


@pytest.fixture(scope="module")
def artifacts():
    """Six candidates, not lowered: a null device runs none of their sources."""
    found = roller.construct(EXPR, "v100", top_k=6)
    arguments = (*(Argument(t.name, "input", t.shape, t.dtype) for t in EXPR.inputs),
                 *(Argument(t.name, "output", t.shape, t.dtype) for t in EXPR.output_tensors))  # fmt: skip
    return {
        c.id: KernelArtifact("cuda", {"arch": "sm_70"}, "v100", EXPR, c.program, (), arguments, c.estimate.to_dict())
        for c in found
    }


def test_every_fault_is_a_record_and_the_others_finish(artifacts):
    seen = []
    device = parse_device_name("null:v100?hang=1&crash=2&wrong=3&out_of_bounds=4")
    records = profile(EXPR, artifacts, [device], QUICK, seen.append)
    assert list(records) == list(artifacts)
    assert [r.candidate_id for r in seen] == list(artifacts)
    good, hung, crashed, wrong, outside, last = records.values()
    assert [r.status for r in records.values()] == ["measured", "timeout", "crashed", "wrong", "crashed", "measured"]
    assert "no answer within 1.5 s" in hung.reason
    assert "signal SIGSEGV" in crashed.reason
    assert "expected" in wrong.reason
    assert "error bound" in wrong.reason
    assert "illegal memory access" in outside.reason
    for record in (good, last):
        predicted = artifacts[record.candidate_id].estimate["seconds"]
        assert record.measured_s == pytest.approx(predicted, rel=0.15)
        assert 0 < record.spread_s < 0.1 * predicted
    assert all(r.measured_s is None for r in (hung, crashed, wrong, outside))


def test_times_are_seeded_by_candidate_alone(artifacts):
    names = list(artifacts)
    some = {n: artifacts[n] for n in names[:3]}
    backwards = {n: artifacts[n] for n in reversed(names[:3])}
    one, two = (profile(EXPR, a, [parse_device_name("null:v100?noise=0.05")]) for a in (some, backwards))
    assert {n: r.measured_s for n, r in one.items()} == {n: r.measured_s for n, r in two.items()}
    other = profile(EXPR, some, [parse_device_name("null:v100?noise=0.05&seed=1")])
    assert all(other[n].measured_s != one[n].measured_s for n in some)


def test_losers_are_dropped_after_one_run(artifacts):
    slow = {n: replace(a, estimate={**a.estimate, "seconds": 1e-4 * (1 + 9 * (i % 2))})
            for i, (n, a) in enumerate(artifacts.items())}  # fmt: skip
    records = list(profile(EXPR, slow, [parse_device_name("null:v100")]).values())
    assert [r.status for r in records] == ["measured", "slower"] * 3
    assert all(r.measured_s == pytest.approx(1e-3, rel=0.2) and r.spread_s is None for r in records[1::2])


def test_several_devices_share_the_candidates(artifacts):
    records = profile(
        EXPR, artifacts, [parse_device_name("null:v100?hang=0"), parse_device_name("null:v100?hang=0")], QUICK
    )
    # The one that hangs keeps one device busy; the other one does the rest meanwhile.
    assert [r.status for r in records.values()] == ["timeout", *["measured"] * 5]


def test_a_spent_budget_leaves_the_rest_built(artifacts):
    records = list(profile(EXPR, artifacts, [parse_device_name("null:v100")], replace(QUICK, budget_s=0.0)).values())
    assert records[0].status == "measured"
    assert {(r.status, r.reason) for r in records[1:]} == {("built", "not profiled: the budget of 0 s was spent")}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("exp", "elementwise('exp', (7, 5), dtype='bfloat16')"), ("int", "matmul(m=9, n=7, k=5, dtype='int8')"),
     ("f16", "softmax(shape=(3, 20), dtype='float16')"), ("max", "reduce(kind='max', shape=(12, 33), axes=(1,))")],
)  # fmt: skip
def test_every_dtype_passes_its_own_check(text, wanted):
    expr = ops.parse(wanted)
    kernel = roller.compile(expr, device="null:a100", top_k=2)
    assert [c.status for c in kernel.candidates] == ["measured"] * 2
    assert kernel.measured_s == min(c.measured_s for c in kernel.candidates)


def test_compile_on_a_null_device_ranks_by_measurement_and_computes():
    expr = ops.matmul(40, 24, 16)
    kernel = roller.compile(expr, device="null:h200?noise=0.3&seed=4", top_k=6)
    times = [c.measured_s for c in kernel.candidates if c.measured_s is not None]
    assert kernel.measured_s == min(times)
    assert times != sorted(times), "noise of 30 % should have changed the order"
    assert kernel.artifact.device == "h200"
    a, b = np.ones((40, 16), "f"), np.ones((16, 24), "f")
    np.testing.assert_array_equal(kernel(a, b), a @ b)


def test_the_command_line_says_that_null_times_are_pretended(capsys):
    for words, status, text in (
        (["--device", "null:v100"], 0, "pretended "),
        (["--device", "null:v100", "--set", "units=3"], 0, "pretended "),
        (["--device", "null:v100", "--set", "unit=3"], 1, "did you mean 'units'?"),
    ):
        with pytest.raises(SystemExit) as done:
            cli(["compile", "matmul(m=32, n=16, k=8)", "--top-k", "2", *words])
        assert (done.value.code or 0) == status
        shown = capsys.readouterr()
        assert text in shown.out + shown.err


def test_all_candidates_lost_is_one_error_with_grouped_reasons():
    with pytest.raises(roller.errors.NoCandidateError, match="3 x wrong: output"):
        roller.compile(ops.matmul(16, 16, 16), device="null:v100?wrong=0,1,2", top_k=3)


def test_without_cupy_one_error_says_what_to_install_and_what_works(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('no cupy here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"(?s)no cupy here.*pip install cupy-cuda12x.*emulating, bundling.* work"):
        roller.compile(ops.matmul(16, 16, 16), device="cuda:0")


def test_malformed_devices_are_refused():
    for name in ("cuda:x", "null:", "null:v100?hagn=1", "null:v100?hang=soon"):
        with pytest.raises(LaunchError, match="device '"):
            parse_device_name(name)
    with pytest.raises(LaunchError, match="did you mean 'hang'"):
        parse_device_name("null:v100?hagn=1")
    with pytest.raises(LaunchError, match="expected the specification of a GPU, got a cpu"):
        resolve_device("null:cpu-avx2", list_specs(), load_spec)


@every("name", [n for n in list_specs() if load_spec(n).kind == "gpu"])
def test_a_device_takes_the_spec_it_resembles(name):
    spec = load_spec(name)
    memory = int(spec.memory_layers[-1].capacity_bytes * 0.97)
    seen = DeviceProperties("unknown product", spec.target["arch"], spec.units, memory)
    assert find_matching_spec(seen, [load_spec(n) for n in list_specs()]).name == name


def test_an_unknown_architecture_names_the_known_ones():
    with pytest.raises(SpecError, match=r"expected a specification of 'sm_133', found only .*sm_70"):
        find_matching_spec(DeviceProperties("later GPU", "sm_133", 10, 10), [load_spec(n) for n in list_specs()])


def test_the_device_process_ends_with_its_parent_even_while_it_hangs(artifacts, tmp_path):
    artifact = next(iter(artifacts.values()))
    artifact.save(tmp_path / "a.json")
    code = (
        "import sys, threading, time\n"
        "from roller.artifact import KernelArtifact\n"
        "from roller.runtime.check_and_time_candidates import profile\n"
        "from roller.backends.parse_device_names import parse_device_name\n"
        "from roller.backends.device_process import DeviceProcess\n"
        "first = DeviceProcess._started\n"
        "def started(self):\n"
        "    process = first(self)\n"
        "    print(process.pid, flush=True)\n"
        "    return process\n"
        "DeviceProcess._started = started\n"
        "a = KernelArtifact.load(sys.argv[1])\n"
        "profile(a.expression, {'a': a}, [parse_device_name('null:v100?hang=0')])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a.json")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    child = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":  # nobody reaps it in a container
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the device process outlived its parent")


def test_a_refusal_leaves_the_process_alive_and_a_fault_replaces_it():
    with DeviceProcess(parse_device_name("null:v100")) as process:
        assert process.properties().name == "null device"
        with pytest.raises(DeviceFault) as refused:
            process.request({"op": "check", "position": 0, "artifact": {}}, timeout_s=10)
        assert refused.value.status == "failed"
        assert process.alive
        assert process.generation == 1
        with pytest.raises(DeviceFault) as crashed:
            process.request({"op": "time"}, timeout_s=10)  # a field is missing: nothing was foreseen for that
        assert crashed.value.status == "crashed"
        assert process.properties().name == "null device"
        assert process.generation == 2
