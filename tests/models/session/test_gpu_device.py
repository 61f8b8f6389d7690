"""What the runner asks of CuPy, on a stand-in for it: arguments, copies, streams, graphs."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from roller.errors import LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.gpu_device import CupyDevice
from roller.models.session.gpu_session import GpuSession
from roller_runtime.plan.program_steps import Copy
from tests.backends import fake_cupy
from tests.models.session import gpu, programs


def unary(fn):
    def kernel(*pointers):
        (source, target) = (fake_cupy.view(p, (3, 40), "f") for p in pointers)
        target[...] = fn(source)

    return kernel


def add(*pointers):
    a, b, y = (fake_cupy.view(p, (3, 40), "f") for p in pointers)
    y[...] = a + b


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    kernels = {"relu": unary(lambda x: np.maximum(x, 0)), "tanh": unary(np.tanh), "add": add}
    monkeypatch.setattr(fake_cupy, "KERNELS", kernels)
    fake_cupy.LAUNCHES.clear()
    return fake_cupy


def session(program, **options):
    """Kernels are Python functions that take inputs, then outputs."""
    artifacts = {}
    for key, found in gpu.kernels(program).items():
        names = tuple(a.name for a in (*found.inputs, *found.outputs))
        launch = replace(found.launches[0], entry=key, arguments=names)
        artifacts[key] = replace(found, launches=(launch,), binary=b"image")
    return GpuSession(plan_memory(program, value_align_bytes=16), artifacts, CupyDevice(0), **options)


@pytest.mark.parametrize("graphs", [True, False])
def test_lanes_run_on_streams_of_their_own(cupy, graphs):
    program = programs.lanes()
    made = session(program, graphs=graphs)
    for seed in (0, 1):
        feeds = programs.feeds(program, seed)
        gpu.assert_right(program, made.run(None, feeds), feeds)
    by_stream = {}
    for name, _, _, _, stream in cupy.LAUNCHES[:7]:
        by_stream.setdefault(stream, []).append(name)
    assert sorted(by_stream.values()) == [["tanh", "relu", "tanh"], ["tanh", "relu", "tanh", "add"]]
    assert len(cupy.LAUNCHES) == (7 if graphs else 14)  # a graph holds its launches


def test_a_graph_that_the_driver_refuses_is_done_without(monkeypatch):
    program = programs.lanes()
    made = session(program)

    def refuse(stream, mode=None):
        raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    frame = made.frame()
    monkeypatch.setattr(fake_cupy.Stream, "end_capture", refuse)
    monkeypatch.setattr(fake_cupy.Stream, "begin_capture", lambda stream, mode=None: None)
    assert not frame.capture()
    assert "captured no graph (cudaErrorStreamCaptureUnsupported)" in frame.no_graph
    monkeypatch.setattr(fake_cupy.runtime, "is_hip", True)
    other = made.frame()
    assert not other.capture()
    assert "HIP" in other.no_graph


def test_copies_take_the_call_their_pitches_allow(cupy):
    steps = [Copy("x", "a", 3, 8, 0, 8, 0, 16), Copy("x", "b", 3, 8, 0, 0, 8, 16)]
    program = programs.program(steps, {"x": (6,)}, ["a", "b"], {"a": (12,), "b": (12,)})
    a, b = session(program).run(np.arange(6, dtype=np.float32))
    assert a.reshape(3, 4)[:, :2].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert b.reshape(3, 4)[:, 2:].tolist() == [[0, 1]] * 3


def test_times_are_those_of_events(cupy):
    program = programs.lanes()
    made = session(program)
    frame = made.frame()
    frame.upload(list(programs.feeds(program).values()))
    assert frame.time(frame.launch, 3) == [pytest.approx(4 * cupy.Stream.cost)] * 3  # those of the first stream
    times = frame.profile(2)
    assert [round(times[id(s)] / cupy.Stream.cost) for s in made.plan.program.steps] == [1, 2, 1]


def test_what_the_device_says_of_itself_and_what_it_has_not(monkeypatch):
    device = CupyDevice(0)
    assert device.properties()["name"] == "Fake GPU"
    assert device.properties()["arch"] == "sm_90"
    with pytest.raises(LaunchError, match="device 3: expected one of the 1 found"):
        CupyDevice(3)

    def full(size):
        raise MemoryError("out of memory")

    monkeypatch.setattr(fake_cupy.cuda, "alloc", full)
    with pytest.raises(LaunchError, match="expected 1 MB of free memory"):
        device.allocate(10**6)
