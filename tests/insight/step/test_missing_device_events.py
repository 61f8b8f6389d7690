"""A profile of a GPU without the GPU's events is no run on a processor."""

from __future__ import annotations

import json

import pytest

from roller.errors import RollerError
from roller.insight.step.kineto_reader import read_profile
from roller.insight.step.missing_device_events import missing_events_notes, missing_events_reason
from roller.insight.step.replay import from_kineto, replay
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.search import search
from roller.insight.whatif.whatifs import AMP, ZeroTime
from tests.insight.step.random_profiles import program
from tests.offenders import every

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync")


def operators(*more):
    """What a thread did: no calls of a device's runtime, and none of its tasks."""
    rows = [r for r in program(1, steps=3).rows if r["cat"] not in (*DEVICE, "cuda_runtime")]
    return [*rows, *more]


def row(category, name, **arguments):
    return {"ph": "X", "cat": category, "name": name, "ts": 2000.0, "dur": 5.0, "pid": 1, "tid": 11, "args": arguments}


def written(rows, path, **keys):
    path.write_text(json.dumps({**keys, "traceEvents": rows}))
    return path


SIGNS = {
    "a collective of a library for GPUs": ([row("user_annotation", "nccl:all_to_all")], {}),
    "a library for GPUs": ([row("cpu_op", "aten::cudnn_convolution")], {}),
    "a device in the arguments": ([row("cpu_op", "aten::to", **{"Concrete Inputs": ["", "6", "cuda:0"]})], {}),
    "memory of a device": ([{**row("", "[memory]", **{"Device Type": 1, "Bytes": 512}), "ph": "i"}], {}),
    "a mark on the device's lanes": ([row("gpu_user_annotation", "ProfilerStep#1")], {}),
    "the job's library": ([], {"distributedInfo": {"backend": "nccl", "rank": 0}}),
    "calls of its runtime": ([row("cuda_runtime", "cudaLaunchKernel", correlation=1)], {}),
}


@every("sign", SIGNS)
def test_a_gpu_at_work_without_its_events_is_said_and_nothing_is_asked_of_it(cli, tmp_path, sign):
    rows, keys = SIGNS[sign]
    path = written(operators(*rows), tmp_path / "p.json", **keys)
    graph = from_kineto(path)
    assert not replay(graph).is_explained and "device's events are missing" in graph.incomplete
    with pytest.raises(RollerError, match="events are missing"):
        what_if(graph, AMP(prices="factor"))
    with pytest.raises(RollerError, match="events are missing"):
        search(graph)
    assert graph.incomplete in what_if(graph, ZeroTime(phase="optimizer"), force=True).notes
    code, said, _ = cli("replay", str(path))
    assert code == 0 and "ProfilerActivity.CUDA" in said
    assert from_kineto(path, device="v100").device.name == "v100"
    with pytest.raises(RollerError, match="a GPU, whose events are missing"):
        from_kineto(path, device="cpu-avx2")


def test_a_run_on_a_processor_is_one_also_beside_a_gpu(tmp_path):
    graph = from_kineto(written(operators(), tmp_path / "p.json"))
    assert not graph.incomplete and not graph.notes and replay(graph).is_explained
    beside = from_kineto(written(operators(), tmp_path / "p.json", deviceProperties=[{"id": 0, "name": "T4"}]))
    assert not beside.incomplete and "nothing in the profile ran on it" in beside.notes[0]


def test_kernels_that_are_missing_in_part_are_counted(tmp_path):
    rows = program(1, steps=4).rows
    kernels = [r for r in rows if r["cat"] == "kernel"]
    gone = {id(r) for r in kernels[: len(kernels) // 2]}
    some = read_profile(written([r for r in rows if id(r) not in gone], tmp_path / "p.json"))
    assert (
        missing_events_reason(some).startswith("Of ")
        and "have no kernel in the profile" in missing_events_reason(some)
        and not missing_events_notes(some)
    )
    assert not missing_events_reason(read_profile(written(rows, tmp_path / "p.json")))
    few = read_profile(written([r for r in rows if r is not kernels[0]], tmp_path / "p.json"))
    assert not missing_events_reason(few) and missing_events_notes(few)[0].startswith("1 of 122 launches has no kernel")


def test_launches_of_a_capture_have_no_kernels(tmp_path):
    rows = program(1, steps=1).rows
    begin, end = (row("cuda_runtime", f"cudaStream{word}Capture", correlation=n) for n, word in
                  ((90_001, "Begin"), (90_002, "End")))  # fmt: skip
    first = min(r["ts"] for r in rows)
    begin["ts"], end["ts"] = first - 900.0, first - 100.0
    launch = row("cuda_runtime", "cudaLaunchKernel")
    captured = [
        {**launch, "args": {"correlation": 91_000 + n}, "ts": first - 800.0 + 2 * n, "dur": 1.0} for n in range(200)
    ]
    assert not missing_events_reason(read_profile(written([*rows, begin, *captured, end], tmp_path / "p.json")))
    assert missing_events_reason(read_profile(written([*rows, *captured], tmp_path / "p.json")))
