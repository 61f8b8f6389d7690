"""A step that runs for real has the operators that are predicted, its seconds, and an honest interval."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from roller.errors import ModelError  # noqa: E402
from roller.insight.measured_step import measure_step  # noqa: E402
from roller.insight.trace.options import TraceOptions  # noqa: E402
from roller.insight.trace.progress import Cancelled, listening  # noqa: E402
from roller.insight.trace.pytorch.measure_step import _operator_times_and_notes, measure_entry  # noqa: E402
from roller.insight.tracing import trace_entry  # noqa: E402
from tests.insight.measured_entries import ENTRIES, HEAD, MLP  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    """Threads that wait for one another take long where other work has the processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def write(tmp_path):
    def write(body, name="train.py"):
        path = tmp_path / name
        path.write_text(HEAD + body)
        return path

    return write


def seen(trace):
    """Return all that is known of the last step's operators, without oneDNN's workspace, whose size it tells nobody."""
    return [
        (
            o.name, o.phase, o.module, o.stack, o.recomputed, o.iteration,
            *([(t.shape, t.stride, t.dtype) for t in side if t.dtype != "uint8"] for side in (o.inputs, o.outputs)),
        )
        for o in trace.steady()
    ]  # fmt: skip


def named(trace):
    """Return the storages that a step keeps: kind, name and bytes."""
    kinds = ("parameter", "gradient", "optimizer_state", "buffer", "input")
    return sorted((s.kind, s.name, s.size_bytes) for s in trace.storages.values() if s.kind in kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_a_measured_step_runs_what_is_predicted(write, name):
    path = write(ENTRIES[name])
    found, told = measure_entry(path, TraceOptions(), 0.01), trace_entry(path, device="cpu")
    assert seen(found.trace) == seen(told)
    assert named(found.trace) == named(told) and found.trace.registered == told.registered
    assert found.trace.samples == told.samples
    same = ("mode", "batch", "amp", "checkpoint", "device", "accumulate", "unlike_steps", "calls")
    assert {k: found.trace.options[k] for k in same} == {k: told.options[k] for k in same}
    assert len(found.operator_s) == len(told.steady()) and all(0 < s < 60 for s in found.operator_s)
    assert found.steps.lower_s <= found.steps.median_s <= found.steps.upper_s
    assert found.trace.options["threads"] == torch.get_num_threads() and found.process_peak_bytes > 1 << 20


@pytest.mark.slow
def test_checkpointing_that_is_asked_for_runs_forwards_twice(write):
    path = write(ENTRIES["transformer"])
    options = TraceOptions(batch=2, checkpoint="encoder.layers.*")
    found, told = measure_entry(path, options, 0.01), trace_entry(path, batch=2, device="cpu", checkpoint=True)
    assert seen(found.trace) == seen(told)
    again = {o.module for o in found.trace.steady() if o.recomputed}
    assert {"encoder.layers.0.linear1", "encoder.layers.1.linear1"} <= again


@pytest.mark.slow
def test_bf16_runs_in_autocast_of_the_processor(write):
    found = measure_entry(write(MLP), TraceOptions(amp="bf16"), 0.01)
    products = [o for o in found.trace.steady() if o.name == "aten.addmm.default"]
    assert [o.outputs[0].dtype for o in products] == ["bfloat16", "bfloat16"]


@pytest.mark.slow
def test_nothing_that_watches_is_left_when_plain_steps_run(write):
    path = write(MLP + """
def iteration_provider(model, plain=iteration_provider):
    step, hooks = plain(model), []
    def watched(x, y):
        from torch.nn.modules import module
        hooks.append(len(module._global_forward_pre_hooks) + sum(len(p._post_accumulate_grad_hooks or ())
            for p in model.parameters() if p._post_accumulate_grad_hooks is not None))
        step(x, y)
        model.hooks = hooks
    iteration_provider.model = model
    return watched
""")  # fmt: skip
    measure_entry(path, TraceOptions(), 0.01)
    hooks = sys.modules["_roller_entry_train"].iteration_provider.model.hooks
    assert hooks[0] == hooks[1] == 5 and set(hooks[2:]) == {0} and len(hooks) >= 2 + 3 * 5


@pytest.mark.slow
def test_operators_that_change_from_call_to_call_are_said(write):
    path = write("""
def model_provider():
    return nn.Linear(8, 4)

def input_provider(batch_size=4):
    return (torch.randn(batch_size, 8),)

def iteration_provider(model):
    optimizer, calls = torch.optim.SGD(model.parameters(), lr=0.1), [0]
    def step(x):
        calls[0] += 1
        y = model(x[:1 + calls[0] % 2 if calls[0] > 4 else 4])
        (y.tanh() if calls[0] > 4 else y).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
""")
    found = measure_entry(path, TraceOptions(), 0.01)
    assert any("timed steps run other operators or shapes" in note for note in found.notes)
    assert len(found.operator_s) == len(found.trace.steady())


class Recorded:
    """What is asked of a trace: the operators of its last step."""

    def __init__(self, *names):
        self._operators = tuple(type("Operator", (), {"name": n, "input_shapes": ((2,),)})() for n in names)

    def steady(self):
        return self._operators


def test_seconds_of_operators_are_medians_where_steps_run_the_same():
    calls = [("a", ((2,),)), ("b", ((2,),))]
    assert _operator_times_and_notes(Recorded("a", "b"), [9.0, 9.0], [(calls, [1.0, 4.0]), (calls, [3.0, 5.0])]) == (
        ((2.0, 1.0, 3.0), (4.5, 4.0, 5.0)), (),
    )  # fmt: skip
    other = [("a", ((2,),)), ("b", ((7,),))]
    found, notes = _operator_times_and_notes(Recorded("a", "b"), [9.0, 8.0], [(other, [1.0, 4.0]), (other[:1], [3.0])])
    assert found == ((2.0, 1.0, 3.0), (8.0, 8.0, 8.0)), "the ends are the median of what was timed once"
    assert notes == (
        "operators: 2 of 2 timed steps run other operators or shapes than the recorded step. 1 of 2 operators are "
        "timed once, in the recorded step.",
    )


@pytest.mark.parametrize(("old", "new", "said"), [
    ("    return nn.Sequential", "    raise ValueError('no such width')\n    return nn.Sequential",
     r"got ValueError at .*train.py:8: no such width \(model_provider failed\)"),
    ("        optimizer.step()", "        int('x')", r"got ValueError at .*train.py:19: .* \(a step failed\)"),
    ("    return torch.randn", "    raise SystemExit\n    return torch.randn", r"SystemExit at .*:11.*input_provider"),
    ("    optimizer = ", "    model.nothing\n    optimizer = ", r"AttributeError.*:14.*iteration_provider"),
    ("\ndef model_provider", "\nimport nowhere_to_be_found\ndef model_provider", r"nowhere_to_be_found"),
])  # fmt: skip
def test_what_fails_is_one_sentence_with_its_line(write, old, new, said):
    assert old in MLP
    path = write(MLP.replace(old, new, 1))
    with pytest.raises(ModelError, match=f"^measure: expected a step that runs, .*{said}"):
        measure_entry(path, TraceOptions(), 0.01)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks a machine without CUDA")
@pytest.mark.parametrize(
    "call", ["nn.Linear(2, 2).cuda()", "torch.zeros(2, device='cuda')", "torch.cuda.synchronize()"]
)
def test_a_file_for_cuda_is_refused_with_the_way_out(write, call):
    path = write(MLP.replace("    return nn.Sequential", f"    {call}\n    return nn.Sequential"))
    with pytest.raises(ModelError, match=r"got a call of CUDA at .*train.py:8, .*torch.cuda.is_available\(\).*predict"):
        measure_entry(path, TraceOptions(), 0.01)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks a machine without CUDA")
def test_a_gpu_that_is_here_is_refused_too(write, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = write(MLP.replace("    return nn.Sequential", "    torch.zeros(2, device='cuda')\n    return nn.Sequential"))
    with pytest.raises(ModelError, match=r"measured on a GPU is not supported yet\. Hide the GPUs"):
        measure_entry(path, TraceOptions(), 0.01)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks a machine without CUDA")
@pytest.mark.slow
def test_what_does_nothing_on_this_machine_is_said(write):
    inside = MLP.replace(
        "        F.cross", "        with torch.autocast('cuda', dtype=torch.bfloat16):\n            F.cross"
    )
    found = measure_entry(write(inside), TraceOptions(), 0.01)
    assert [n for n in found.notes if n.startswith("PyTorch or the file warns: ") and "CUDA is not available" in n]
    assert found.trace.options["entry"].endswith("train.py")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks a machine without CUDA")
@pytest.mark.slow
def test_a_file_that_goes_on_without_cuda_is_measured(write):
    tried = "    try:\n        torch.zeros(1).cuda()\n    except (AssertionError, RuntimeError):\n        pass\n"
    found = measure_entry(write(MLP.replace("    return nn.Seq", f"{tried}    return nn.Seq")), TraceOptions(), 0.01)
    assert found.operator_s


def test_other_devices_and_what_no_processor_has_are_refused(write):
    path = write(MLP.replace("nn.Linear(8, 16)", "nn.Linear(8, 16, device='meta')"))
    with pytest.raises(ModelError, match="expected tensors on the processor, got some on 'meta'"):
        measure_entry(path, TraceOptions(), 0.01)
    with pytest.raises(ModelError, match="expected fp32 or bf16 on a processor, got fp16"):
        measure_entry(path, TraceOptions(amp="fp16"), 0.01)
    for budget_s in (0, -1.0, math.nan, math.inf, True, "long"):
        with pytest.raises(ModelError, match="budget_s: expected seconds above 0"):
            measure_step(path, budget_s=budget_s)
    with pytest.raises(ModelError, match="batch: expected a whole number"):
        measure_step(path, batch=0)


@pytest.mark.slow
def test_a_process_of_its_own_measures_and_leaves_this_one_alone(write, capfd):
    path = write("print('text of the user')\nnn.Linear.marked = True\n" + MLP)
    state, stages = torch.get_rng_state(), set()
    with listening(lambda stage, done, total: stages.add(stage)):
        found = measure_step(path, batch=6, budget_s=1.0)
    assert not hasattr(torch.nn.Linear, "marked") and torch.equal(torch.get_rng_state(), state)
    assert "text of the user" not in capfd.readouterr().out
    assert found.trace.samples == 6 and seen(found.trace) == seen(
        measure_entry(path, TraceOptions(batch=6), 0.01).trace
    )
    del torch.nn.Linear.marked
    assert len(found.operator_s) == len(found.trace.steady()) and math.fsum(found.operator_s) > 0
    ends = zip(found.operator_s, found.operator_interval_s, strict=True)
    assert all(lower <= median <= upper for median, (lower, upper) in ends)
    assert found.iteration_s == pytest.approx(math.fsum(found.operator_s) + found.untracked_s)
    lower, upper = found.samples_per_s_interval
    assert lower <= found.samples_per_s == 6 / found.iteration_s <= upper
    assert found.is_stable != any(note.startswith("time: ") for note in found.notes)
    assert f"{found.trace.options['threads']} threads, PyTorch {torch.__version__}" in found.machine
    assert {"trace", "measure"} <= stages


@pytest.mark.slow
@pytest.mark.parametrize(("line", "said"), [
    ("import os; os._exit(3)", "its end with status 3"),
    ("raise ValueError('no such width')", r"got ValueError at .*train.py:\d+: no such width"),
])  # fmt: skip
def test_a_process_that_fails_is_one_error(write, line, said):
    with pytest.raises(ModelError, match=said):
        measure_step(write(f"{line}\n{MLP}"))


@pytest.mark.slow
def test_a_measurement_is_cancelled_and_its_process_ends(write):
    told = write(MLP).with_name("told")
    path = write(f"import os\nopen({str(told)!r}, 'w').write(str(os.getpid()))\n{MLP}")
    stages = []
    follow = listening(lambda stage, done, total: stages.append(stage), is_cancelled=lambda: "measure" in stages)
    with follow, pytest.raises(Cancelled):
        measure_step(path)
    _soon_gone(int(told.read_text()))


@pytest.mark.slow
def test_its_process_ends_with_the_one_that_asked(write):
    told = write(MLP).with_name("told")
    wait = f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\nwhile True: time.sleep(1)\n"
    code = f"from roller.insight.measured_step import measure_step; measure_step({str(write(wait + MLP))!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as caller:
        end = time.monotonic() + 60
        while not (told.exists() and told.read_text()):
            assert time.monotonic() < end
            time.sleep(0.05)
        caller.kill()
    _soon_gone(int(told.read_text()))


def _soon_gone(process):
    end = time.monotonic() + 60
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        assert time.monotonic() < end
        time.sleep(0.05)
