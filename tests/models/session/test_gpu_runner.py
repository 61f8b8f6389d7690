"""Plans on a GPU: the emulated one, which does work in the worst order that streams and events allow."""

from __future__ import annotations

import numpy as np
import pytest

from roller import ops
from roller.emulator.emulated_device import POLICIES, EmulatedDevice
from roller.errors import EmulationError, LaunchError, ModelError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.gpu_session import GpuSession
from roller_runtime.plan.program_steps import Copy, KernelSource, ParallelGroup
from tests.models.session import gpu, programs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("make", [programs.mlp, programs.lanes, programs.mixed, programs.dense_block])
def test_outputs_are_right_whatever_the_order(make, policy):
    program = make()
    session = gpu.session(program, EmulatedDevice(policy, check=False))
    for seed in (0, 1):  # the second call replays the graph, where there is one
        feeds = programs.feeds(program, seed)
        gpu.assert_right(program, session.run(None, feeds), feeds)


def test_a_plan_of_kernels_and_copies_becomes_a_graph():
    program = programs.lanes()
    device = EmulatedDevice(check=False)
    frame = gpu.session(program, device).frame()
    assert frame.capture()
    assert frame.no_graph == ""
    assert any(isinstance(s, ParallelGroup) for s in program.steps)
    done = device.executed
    frame.replay()
    assert device.executed == done  # a launch waits for nothing
    feeds = programs.feeds(program)
    frame.upload(list(feeds.values()))
    frame.replay()
    gpu.assert_right(program, frame.download(), feeds)


def test_functions_of_arrays_are_in_no_graph_and_the_reason_is_told():
    program = programs.mixed()
    frame = gpu.session(program, EmulatedDevice(check=False)).frame()
    assert not frame.capture()
    assert "functions of arrays" in frame.no_graph


@pytest.mark.parametrize("lost", ["fork", "join"])
def test_a_missing_event_shows(lost, monkeypatch):
    """What the emulated device is for: lanes that do not wait read what is not there yet."""
    program = programs.lanes()
    feeds = programs.feeds(program)
    wrong = []
    for policy in ("first", "last"):
        device = EmulatedDevice(policy, check=False)
        session = gpu.session(program, device, graphs=False)
        wait, main = device.wait, []

        def maybe(event, stream, wait=wait, main=main):
            main.append(stream) if not main else None  # the first to wait is a lane: lanes start before they end
            if (stream.number != main[0].number) == (lost == "fork"):
                wait(event, stream)

        monkeypatch.setattr(device, "wait", maybe)
        try:
            gpu.assert_right(program, session.run(None, feeds), feeds)
        except AssertionError:
            wrong.append(policy)
    assert wrong, "no order shows that a wait is missing"


def test_work_that_is_captured_must_be_joined():
    device = EmulatedDevice()
    main, other, event = device.stream(), device.stream(), device.event()

    def fork():
        device.record(event, main)
        device.wait(event, other)
        device.push(other, lambda: None)

    with pytest.raises(EmulationError, match="not joined"):
        device.capture(fork, main)


def test_writing_around_memory_is_reported():
    device = EmulatedDevice()
    stream, memory = device.stream(), device.allocate(64)
    device.upload(memory.ptr + 60, np.ones(2, np.float32), stream)
    with pytest.raises(EmulationError, match="around memory of 64 bytes"):
        device.synchronize(stream)


def test_streams_that_wait_for_each_other_are_an_error_and_not_a_hang():
    device = EmulatedDevice()
    one, other = device.stream(), device.stream()
    first, second = device.event(), device.event()
    device.record(first, one)
    device.wait(first, other)
    device.record(second, other)
    device.wait(second, one)
    first.work.after.append(second.work)  # which no interface could build
    device.push(one, lambda: None)
    with pytest.raises(EmulationError, match="wait for each other"):
        device.synchronize(one)


def winograd_pair():
    """Return two convolutions of one kernel with filters of their own, which it transforms ahead of all calls."""
    expression = ops.conv2d(1, 32, 16, 16, 32, 3, 3, padding=1)
    shape = (1, 32, 16, 16)
    names = [t.name for t in expression.inputs]
    steps = [programs.run("conv", ("x", "f0"), "a"), programs.run("conv", ("a", "f1"), "y")]
    filters = {f"f{n}": programs.random(n, *expression.inputs[1].shape) / 17 for n in range(2)}
    source = KernelSource(expression, (names[1],))
    return programs.program(steps, {"x": shape}, ["y"], {"a": shape, "y": shape}, {"conv": source}, filters)


def test_panels_are_packed_once_per_kernel_and_constants():
    program = winograd_pair()
    source = program.kernels["conv"]
    artifact = gpu.lowered(source.expression, source.constants, "winograd2")
    assert artifact.prepare is not None
    device = EmulatedDevice(check=False)
    session = GpuSession(plan_memory(program, value_align_bytes=16), {"conv": artifact}, device, graphs=False)
    assert device.executed == 4  # two uploads of filters, which go again, and two transformations
    feeds = programs.feeds(program)
    for _ in range(2):
        before = device.executed
        (got,) = session.run(None, feeds)
        assert device.executed == before + 1 + 2  # an upload and two kernels
    (wanted,) = gpu.evaluate_program(program, feeds).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


def test_copies_repeat_and_overlap_as_their_pitches_say():
    steps = [Copy("x", "y", 3, 8, 4, 0, 0, 16)]
    program = programs.program(steps, {"x": (4,)}, ["y"], {"y": (12,)})
    session = gpu.session(program, EmulatedDevice())
    got = session.run(np.arange(4, dtype=np.float32))
    assert got.reshape(3, 4)[:, :2].tolist() == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "expected all inputs, got none for 'x'"),
        ({"x": np.zeros((1, 1), np.float32)}, r"argument 'x': expected shape .*, got \(1, 1\)"),
        ({"x": np.zeros((4, 48), np.int32)}, "argument 'x': expected dtype float32, got int32"),
    ],
)
def test_wrong_feeds_are_refused(feeds, message):
    session = gpu.session(programs.mlp(), EmulatedDevice(check=False))
    with pytest.raises(LaunchError, match=message):
        session.run(feeds)


def test_kernels_must_be_there_and_fit():
    program = programs.mlp()
    made = plan_memory(program, value_align_bytes=16)
    with pytest.raises(ModelError, match="got none for"):
        GpuSession(made, {}, EmulatedDevice())
    other = dict.fromkeys(program.kernels, gpu.lowered(ops.elementwise("relu", (3,))))
    with pytest.raises(ModelError, match="Compile it again"):
        GpuSession(made, other, EmulatedDevice(check=False)).frame()


def test_what_another_runtime_makes_of_another_shape_overwrites_nothing(monkeypatch):
    program = programs.with_foreign()
    session = gpu.session(program, EmulatedDevice(check=False), graphs=False)
    monkeypatch.setattr(
        "roller.models.session.gpu_frame.run_fallback_step", lambda step, inputs: (np.zeros((9, 9), np.float32),) * 2
    )
    with pytest.raises(LaunchError, match=r"sign, sinh: 's': expected float32 of shape \(3, 4\), got .* \(9, 9\)"):
        session.run(None, programs.feeds(program))
