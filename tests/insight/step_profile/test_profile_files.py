"""Profiles of files: recordings, ONNX models, saved profiles, the verb, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import stat

import pytest

from roller.errors import ArtifactError, RollerError
from roller.insight.step_profile.profile_json import load_profile
from roller.insight.step_profile.profiling import profile, profile_source_file_kind
from roller.insight.step_profile.recorded_profile import profile_of_recording
from tests.insight.step_profile.test_profile_json import OLD, sample

HOST, DEVICE = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}


def event(name, category, start, took, where=HOST, **given):
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": took, **where, "args": given}


def recording(steps=3):
    """Return the events of steps of 1000 us: a loader, a layer with a kernel, its backward, a copy, memory."""
    rows = []
    for n in range(steps):
        at, number = 1000 * n, 10 * n
        rows += [
            event(f"ProfilerStep#{n}", "user_annotation", at, 1000),
            event("enumerate(DataLoader)#_Iter.__next__", "user_annotation", at + 1, 200),
            event("nn.Module: net.fc", "python_function", at + 210, 100),
            event("aten::mm", "cpu_op", at + 220, 60, **{"Input Dims": [[8, 16], [16, 4]], "Sequence number": number}),
            event("cudaLaunchKernel", "cuda_runtime", at + 230, 10, correlation=number + 1),
            event("gemm", "kernel", at + 300, 250, DEVICE, correlation=number + 1, stream=7, device=0),
            event(
                "autograd::engine::evaluate_function: MmBackward0",
                "cpu_op",
                at + 600,
                60,
                **{"Sequence number": number},
            ),
            event("aten::mm", "cpu_op", at + 610, 40, **{"Input Dims": [[16, 8], [8, 4]], "Sequence number": number}),
            event("cudaLaunchKernel", "cuda_runtime", at + 620, 10, correlation=number + 2),
            event("gemm_t", "kernel", at + 640, 100, DEVICE, correlation=number + 2, stream=7, device=0),
            event("cudaMemcpyAsync", "cuda_runtime", at + 800, 10, correlation=number + 3),
            event(
                "Memcpy HtoD", "gpu_memcpy", at + 820, 30, DEVICE, correlation=number + 3, stream=7, device=0, bytes=64
            ),
        ]
        for moment, size in ((225, 4096), (990, -4096)):
            total = 8192 + (4096 if size > 0 else 0)
            rows.append(
                {
                    "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at + moment, **HOST,
                    "args": {"Addr": 100 + n, "Bytes": size, "Device Type": 1, "Device Id": 0, "Total Allocated": total,
                             "Total Reserved": 2 << 20},
                }
            )  # fmt: skip
    return {"traceEvents": rows}


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "run.pt.trace.json"
    path.write_text(json.dumps(recording()))
    return path


def test_a_recording_is_a_mean_step_of_modules_operators_shapes_and_kernels(recorded):
    found = profile(recorded)
    assert (found.source, found.device, found.notes[0]) == ("recorded", "cuda:0", "A mean of 3 steps.")
    nodes = {node.name: node for node in found.root.walk()}
    assert found.iteration_s == pytest.approx(1e-3) == pytest.approx(math.fsum(found.categories.values()))
    assert nodes["gemm"].wall_s == pytest.approx(250e-6) and nodes["gemm"].calls == 1
    assert set(nodes["net.fc"].seconds) == {"forward", "backward"}
    assert {"8x16, 16x4", "16x8, 8x4"} <= set(nodes) and nodes["aten::mm"].device_s == pytest.approx(350e-6)
    assert nodes["host code between calls"].wall_s > 0
    found.check()


def test_categories_are_those_of_the_plugin(recorded):
    found = profile(recorded).categories
    assert found["kernel"] == pytest.approx(350e-6) and found["memcpy"] == pytest.approx(30e-6)
    assert found["loader"] == pytest.approx(200e-6) and len(found) == 8


def test_memory_of_a_recording_is_at_the_peak_by_operator(recorded):
    found = profile(recorded)
    assert found.total_bytes == 2 << 20
    assert found.memory_parts == {"allocated": 4096, "allocated_before": 8192, "cached": (2 << 20) - 12288}
    (tensors,) = (n for n in found.root.walk() if n.name == "allocated")
    assert tensors.held_bytes == {"allocated": 4096}
    assert max(p.allocated_bytes for p in found.memory_curve) == 12288
    assert max(sum(p.holders.values()) for p in found.memory_curve) == 4096
    assert all(sum(p.holders.values()) <= p.allocated_bytes for p in found.memory_curve)


def test_a_recording_of_a_cpu_has_no_cached_blocks(tmp_path):
    whole = recording()
    for row in whole["traceEvents"]:
        if row["name"] == "[memory]":
            row["args"] |= {"Device Type": 0, "Device Id": -1, "Total Reserved": 0}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(whole))
    found = profile(path)
    assert found.total_bytes == 12288 and found.memory_parts == {"allocated": 4096, "allocated_before": 8192}


def test_a_recording_without_steps_or_memory_is_one_step(tmp_path):
    rows = [r for r in recording(1)["traceEvents"] if r["name"] != "[memory]" and "ProfilerStep" not in r["name"]]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = profile_of_recording(path)
    assert not found.memory_curve and not found.total_bytes
    assert found.iteration_s == pytest.approx(849e-6) == pytest.approx(math.fsum(found.categories.values()))


def test_the_tree_of_a_recording_is_its_mean_step_where_earlier_work_delays_the_first(tmp_path):
    rows = recording(2)["traceEvents"]
    rows += [  # a kernel from before the steps, which runs into the first
        event("cudaLaunchKernel", "cuda_runtime", -200, 10, correlation=900),
        event("long", "kernel", -180, 420, DEVICE, correlation=900, stream=7, device=0),
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = profile_of_recording(path)
    assert found.iteration_s == pytest.approx((760e-6 + 1000e-6) / 2, abs=1e-9)
    assert math.fsum(found.categories.values()) == pytest.approx(found.iteration_s, abs=1e-9)
    found.check()


def test_allocations_beyond_the_allocated_bytes_are_not_believed(tmp_path):
    rows = recording(1)
    for row in rows["traceEvents"]:
        if row["name"] == "[memory]":
            row["args"]["Total Allocated"] = 1024
    path = tmp_path / "run.json"
    path.write_text(json.dumps(rows))
    found = profile_of_recording(path)
    assert found.memory_parts == {"allocated_before": 1024, "cached": (2 << 20) - 1024}
    assert any("its allocations are more than its allocated bytes" in note for note in found.notes)


def test_memory_of_other_devices_is_said_to_be_left_out(tmp_path):
    rows = recording(1)
    rows["traceEvents"] += [
        {**row, "args": {**row["args"], "Device Id": 1}} for row in rows["traceEvents"] if row["name"] == "[memory]"
    ]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(rows))
    assert "Memory is that of cuda:0, without that of cuda:1." in profile_of_recording(path).notes


def test_an_event_of_another_day_is_damaged(tmp_path):
    rows = recording(3)
    wanted = profile_of_recording(_written(tmp_path / "a.json", rows))
    rows["traceEvents"].append(event("aten::mm", "cpu_op", 1e18, 5))
    found = profile_of_recording(_written(tmp_path / "b.json", rows))
    assert found.root == wanted.root and any("more than a day from the others" in note for note in found.notes)
    rows["traceEvents"] += [event("aten::mm", "cpu_op", 1e18 * n, 5) for n in range(2, 9)]
    with pytest.raises(ArtifactError, match="8 damaged events"):
        profile_of_recording(_written(tmp_path / "c.json", rows))


def _written(path, rows):
    path.write_text(json.dumps(rows))
    return path


def test_a_truncated_recording_is_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(recording())[:-900])
    with pytest.raises(ArtifactError, match="cut off or broken"):
        profile(path)


def test_kinds_of_files(tmp_path, recorded):
    assert profile_source_file_kind(recorded) == "recording" and profile_source_file_kind(OLD) == "profile"
    (tmp_path / "entry.py").write_text("from parts import model_provider")
    assert profile_source_file_kind(tmp_path / "entry.py") == "entry"
    for name, kind in (("b.onnx", "model"), ("train.py", "script"), ("t.json.gz", "recording")):
        (tmp_path / name).write_bytes(b"")
        assert profile_source_file_kind(tmp_path / name) == kind
    with pytest.raises(RollerError, match="expected a file, got none"):
        profile_source_file_kind(tmp_path / "none.json")
    with pytest.raises(RollerError, match=r"expected \.py, \.onnx, \.json, \.json\.gz, got 'readme\.md'"):
        profile_source_file_kind("README.md")


@pytest.mark.parametrize(
    "given",
    [
        {"batch": 4},
        {"amp": "bf16"},
        {"checkpoint": True},
        {"curve": True},
        {"calls": 2},
        {"devices": 2},
        {"device": "t4"},
    ],
)
def test_what_does_not_apply_to_a_file_is_refused(recorded, given):
    with pytest.raises(RollerError, match=f"expected no {next(iter(given))} with a recording"):
        profile(recorded, **given)


def test_only_an_entry_file_can_be_measured(recorded):
    with pytest.raises(RollerError, match="measure: expected an entry file, which can run, got a recording"):
        profile(recorded, measure=True)


def test_the_verb_prints_a_saved_profile(cli, tmp_path, monkeypatch):
    from roller.insight.step_profile.profile_json import save_profile

    save_profile(sample(), tmp_path / "p.json")
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = cli("profile", tmp_path / "p.json")
    assert (
        code == 0 and "train.py: predicted on 2xa100, batch 8 per device, bf16, 350 ms a step (300 ms to 400 ms)" in out
    )
    for text in ("train.py:9", "fc", "100.0 %", "compute", "memory at the total's peak", "a note", "samples/s"):
        assert text in out
    monkeypatch.setenv("COLUMNS", "80")
    code, narrow, _ = cli("profile", tmp_path / "p.json", "--sort", "memory")
    assert code == 0 and max(map(len, narrow.splitlines())) <= 80


def test_the_verb_prints_what_sums_to_the_step_and_no_empty_rows(cli, tmp_path, monkeypatch):
    from roller.insight.step_profile.node import Seconds
    from roller.insight.step_profile.profile_json import save_profile
    from roller.insight.step_profile.step_profile import StepProfile
    from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder

    tree = TreeBuilder()
    tree.add_time(
        (NodeKey("line", "train.py:9"), NodeKey("operator", "aten.mm.default")), "forward", Seconds(0.3, 0.3, 0.0)
    )
    tree.count_call((NodeKey("line", "train.py:9"), NodeKey("operator", "aten.view.default")))
    tree.add_time((NodeKey("overhead", "outside of operators"),), "other", Seconds(-0.05, 0.0, 0.0), calls=0)
    root = tree.build()
    save_profile(StepProfile("train.py", "measured", "a CPU", root, root.wall_s, 0.2, 0.3), tmp_path / "p.json")
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = cli("profile", tmp_path / "p.json")
    assert code == 0 and "other" not in out.replace("outside of operators", "")
    rows = {row.split("  ")[0].strip(): row.split() for row in map(str.strip, out.splitlines())}
    times = [float(rows[name][-5 if name == "outside of operators" else 1]) for name in ("step", "train.py:9")]
    assert times == [250.0, 300.0] and "-50.00 ms" in out and "-20.0 %" in out


def test_at_80_columns_lines_keep_their_numbers_and_batches_their_rows(cli, tmp_path, monkeypatch):
    from dataclasses import replace

    from roller.insight.step_profile.batch_curve import BatchPoint, batch_curve
    from roller.insight.step_profile.node import Seconds
    from roller.insight.step_profile.profile_json import save_profile
    from roller.insight.step_profile.tree_builder import NodeKey, TreeBuilder

    tree, folder = TreeBuilder(), "a_long_folder/of_a_long_project/"
    for number in (71, 72):
        path = (NodeKey("line", f"{folder}train.py:9"), NodeKey("line", f"{folder}network.py:{number}"))
        tree.add_time(
            (*path, NodeKey("operator", "aten.mm.default")), "forward", Seconds(0.1, 0.1, 0.0), bound="compute"
        )
    root = tree.build()
    curve = batch_curve(
        lambda n: BatchPoint(n, n / 256, 256.0, n << 25, n << 26, True, "launches", "forward"), 128, 20 << 30
    )
    save_profile(replace(sample(), root=root, iteration_s=root.wall_s, curve=curve), tmp_path / "p.json")
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = cli("profile", tmp_path / "p.json")
    rows = out.splitlines()
    assert code == 0 and max(map(len, rows)) <= 80 and "bound: " not in out
    assert [sum(row.strip().startswith("...") and f"work.py:{n} " in row for row in rows) for n in (71, 72)] == [1, 1]
    assert any(row.split()[:4] == ["*128", "500.00", "ms", "256.0"] and row.endswith("launches ") for row in rows)


def test_the_verb_writes_json_that_reads_back(cli, tmp_path, recorded):
    code, out, _ = cli("profile", recorded, "--json", "--out", tmp_path / "p.json")
    assert code == 0 and json.loads(out)[0]["format"] == "roller-profile"
    assert load_profile(tmp_path / "p.json") == profile(recorded)


def test_names_out_of_a_file_never_reach_a_terminal_raw(cli, tmp_path):
    text = json.dumps(recording()).replace("gemm", "ge\\u001b[2Jmm").replace("net.fc", "ne\\u009bt.fc")
    (tmp_path / "run.json").write_text(text)
    code, out, _ = cli("profile", tmp_path / "run.json", "--depth", "20")
    assert code == 0 and "\x1b" not in out and "\x9b" not in out and "\\x1b[2J" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "t.json"], "expected an entry file that is traced for --trace"),
        (["--amp", "fp16,bf16"], "expected one way of training"),
        (["--batch", "1,2", "--out", "p.json"], "expected one device and batch"),
        (["--measure", "--device", "a100"], "expected none beside --measure"),
        (["--device", "a100"], "expected none beside a recording"),
        (["--curve"], "--curve: expected an entry file, which has other batches, got a recording"),
        (["--measure-s", "5"], "--measure-s: expected --measure beside it"),
        (["--sort", "name"], "--sort: expected time, memory"),
        (["--out", "run.pt.trace.json"], "--out: expected a file of its own, got that of run.pt.trace.json"),
        (["--out", "a.json", "--trace", "./a.json"], "--trace: expected a file of its own, got that of --out"),
    ],
)
def test_the_verb_refuses_what_makes_no_sense(cli, recorded, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("profile", recorded, *arguments)
    assert code == 2 and said in err and not out and not list(tmp_path.glob("*.tmp"))


def test_a_model_is_profiled_by_kernel(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    weight = helper.make_tensor("w", kinds.FLOAT, [16, 8], [0.5] * 128)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "net",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [4, 8])], [weight],
    )  # fmt: skip
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    found = profile(path, "a100")
    found.check()
    assert (found.source, found.batch) == ("predicted", 4) and found.memory_parts["parameter"] == 128 * 4
    assert [n.kind for n in found.root.children if n.wall_s] == ["kernel"]


def test_no_output_replaces_a_pipe_or_a_device(cli, recorded, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code, out, err = cli("profile", recorded, "--out", tmp_path / "pipe")
    assert code == 1 and "expected a file, got a pipe or a device" in err and not out
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["profile", "forecast", "memory", "sweep", "sensitivity"])
def test_what_an_entry_file_prints_is_no_part_of_the_json(cli, tmp_path, verb):
    pytest.importorskip("torch")
    file = tmp_path / "train.py"
    file.write_text(
        "import torch\nprint('loaded')\n"
        "def model_provider():\n    print('made')\n    return torch.nn.Linear(8, 8)\n"
        "def input_provider(batch_size=4):\n    return (torch.zeros(batch_size, 8),)\n"
        "def iteration_provider(model):\n    return lambda x: model(x).sum().backward()\n"
    )
    code, out, err = cli(verb, file, "--json")
    assert code == 0 and json.loads(out) and {"loaded", "made"} <= set(err.splitlines())
