"""Packs on a GPU: steps that are one launch compute what they compute alone."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from roller import ops
from roller.emulator.device import EmulatedDevice
from roller.emulator.emulate import ORDERS
from roller.errors import LaunchError, ModelError
from roller.models.graph.memory import plan
from roller.models.graph.plan_data import plan_from_dict, plan_to_dict
from roller.models.graph.steps import KernelSource, Program, Together
from roller.models.session.gpu_device import CupyDevice
from roller.models.session.gpu_runner import GpuSession
from roller.models.session.horizontal import launches_of, pack_key
from roller.templates.gpu.emit.horizontal import pack
from tests.backends import fake_cupy
from tests.models.session import gpu, programs


def cells(count: int = 3, width: int = 32) -> Program:
    """Products with weights of their own side by side, then one more and an activation side by side, then a sum."""
    names = [f"h{n}" for n in range(count)]
    first = [programs.run("product", ("x", f"w{n}"), name) for n, name in enumerate(names)]
    second = [programs.run("product", ("h0", "w0"), "a"), programs.run("tanh", "h1", "b")]
    steps = [
        Together(tuple((s,) for s in first), packed=True),
        Together(tuple((s,) for s in second), packed=True),
        programs.run("add", ("a", "b"), "y"),
    ]
    shape = (1, width)
    sources = {
        "product": KernelSource(ops.matmul(1, width, width), ("B",)), "tanh": programs.unary(shape, "tanh"),
        "add": KernelSource(ops.elementwise("add", shape)),
    }  # fmt: skip
    weights = {f"w{n}": programs.random(n, width, width) / 6 for n in range(count)}
    return programs.program(steps, {"x": shape}, ["y", *names], dict.fromkeys((*names, "a", "b", "y"), shape),
                            sources, weights)  # fmt: skip


def session(program: Program, device, **options) -> GpuSession:
    artifacts = gpu.kernels(program)
    both = {k: artifacts[k] for k in ("product", "tanh")}
    packs = {"product": pack({"product": artifacts["product"]}, {"product": 4}),
             "product+tanh": pack(both, {"product": 1, "tanh": 1})}  # fmt: skip
    return GpuSession(plan(program, value_align_bytes=16), artifacts, device, packs=packs, **options)


@pytest.mark.parametrize("order", ORDERS)
def test_a_pack_computes_what_its_steps_do(order):
    program = cells()
    made = session(program, EmulatedDevice(order=order))
    for seed in (0, 1):  # the second call replays the graph
        feeds = programs.feeds(program, seed)
        gpu.assert_right(program, made.run(None, feeds), feeds)


def test_a_pack_is_one_launch():
    program = cells()
    device = EmulatedDevice(check=False)
    made = session(program, device, graphs=False)
    frame = made.frame()
    frame.upload(list(programs.feeds(program).values()))
    before = device.executed
    frame.launch()
    frame.download()
    assert device.executed - before == 1 + 3  # an upload, two packs and the sum
    artifacts = gpu.kernels(program)
    packs = {pack_key(s): pack({k: artifacts[k] for k in pack_key(s).split("+")}, {"product": 3, "tanh": 1})
             for s in program.steps[:2]}  # fmt: skip
    assert launches_of(program.steps, artifacts, packs) == 3
    plain = [replace(s, packed=False) if isinstance(s, Together) else s for s in program.steps]
    assert launches_of(plain, artifacts, {}) == 6


def test_a_plan_without_its_packed_kernels_is_refused():
    program = cells()
    made, artifacts = plan(program, value_align_bytes=16), gpu.kernels(program)
    with pytest.raises(ModelError, match=r"room for 3\*product, got none"):
        GpuSession(made, artifacts, EmulatedDevice())
    small = {"product": pack({"product": artifacts["product"]}, {"product": 2})}
    with pytest.raises(ModelError, match=r"room for 3\*product, got none"):
        GpuSession(made, artifacts, EmulatedDevice(), packs=small)


def test_packs_are_plain_data():
    made = plan(cells(), value_align_bytes=16)
    again = plan_from_dict(plan_to_dict(made), made.program.constants)
    assert again.program.steps == made.program.steps


def test_cupy_is_given_the_table_by_value(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    program, seen = cells(), []
    artifacts = gpu.kernels(program)
    kernel = pack({"product": artifacts["product"]}, {"product": 4})
    device = CupyDevice()
    with pytest.raises(LaunchError, match="expected a built kernel"):
        device.load_packed(kernel)
    monkeypatch.setitem(fake_cupy.KERNELS, kernel.stages[0].entry, lambda table: seen.append(table.tobytes()))
    loaded = device.load_packed(kernel.with_binary(b"image"))
    names = kernel.stages[0].members[0].arguments
    runs = [{name: (100 * n + i, 4) for i, name in enumerate(names)} for n in range(3)]
    stream = device.stream()
    for launch in loaded.bind({"product": runs}):
        launch(stream)
    (table,) = seen
    columns = np.frombuffer(table[: 8 * 4 * len(names)], np.uint64).reshape(len(names), 4)
    assert columns.T.tolist() == [[100 * n + i for i in range(len(names))] for n in range(3)] + [[0] * len(names)]
    blocks = artifacts["product"].launches[0].grid[0]
    assert np.frombuffer(table[8 * 4 * len(names) :], np.uint32)[0] == 3 * blocks
    assert fake_cupy.LAUNCHES[-1][1] == (3 * blocks, 1, 1)
