"""Fused expressions become kernels that compute them: on this processor, and of CUDA sources by the emulator."""

from __future__ import annotations

import numpy as np
import pytest

import roller
from roller.compile_arguments import spec_and_local_device
from roller.compiler import pipeline
from roller.emulator import prove
from roller.runtime.check import check
from tests.models.onnx.test_partition_fused import Net, attention, held, norm, runs

V100 = "v100"


def cell(net, width=24):
    """A recurrent cell: its state is read again, so it is stored beside what it shows."""
    x = net.add("Add", net.add("MatMul", net.input(2, 8), net.weight(8, 4 * width)), net.weight(4 * width))
    into, out, forget, new = net.add("Split", x, axis=1, outputs=4)
    kept = net.add("Mul", net.add("Sigmoid", forget), net.input(2, width))
    state = net.add("Add", kept, net.add("Mul", net.add("Sigmoid", into), net.add("Tanh", new)))
    return state, net.add("Mul", net.add("Sigmoid", out), net.add("Tanh", state))


def program_of_cell():
    net = Net()
    return held(net.graph(*cell(net)))


def test_a_state_and_what_it_shows_are_one_pass():
    program = program_of_cell()
    assert [len(s.outputs) for s in runs(program)] == [1, 2]
    source = program.kernels[runs(program)[1].kernel]
    kernel = roller.compile(source.expression, device="cpu", top_k=1, cache=False)
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(t.shape).astype(np.float32) for t in source.expression.inputs]
    found = kernel(*arrays)
    for got, expected in zip(found, source.expression.evaluate(arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def sources():
    net = Net()
    x = net.input(1, 6, 12)
    y = norm(net, attention(net, x, 6, 12, 3, 1), 12)
    programs = held(net.graph(y)), program_of_cell()
    return [source for p in programs for source in p.kernels.values()]


@pytest.mark.slow
def test_fused_kernels_of_a_gpu_compute_their_expressions(tmp_path):
    for source in sources():
        (best, *_) = roller.construct(source.expression, V100, top_k=1)
        spec = spec_and_local_device(V100)[0]
        artifact = pipeline.lower(best.program, source.expression, spec)
        proof = prove(artifact, orders=("forward",), compare=lambda *a: check(*a).message, cache_dir=tmp_path)
        assert proof.ok, f"{source.expression.name}: {proof}"


def test_a_session_runs_what_is_left_to_another_runtime(monkeypatch):
    from onnx import TensorProto, helper

    from roller.errors import RollerWarning
    from roller.models.onnx.lowering_registry import LOWERINGS

    nodes = [helper.make_node("Relu", ["x"], ["a"], "first"), helper.make_node("Tanh", ["a"], ["b"], "other"),
             helper.make_node("Neg", ["b"], ["y"], "last")]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (3, 5)) for n in "xy"]
    graph = helper.make_graph(nodes, "mixed", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    monkeypatch.delitem(LOWERINGS, ("", "Tanh"))
    with pytest.warns(RollerWarning, match=r"nodes that onnxruntime computes: 'other' \(operator Tanh"):
        session = roller.compile_model(model, fallback="onnxruntime", top_k=1, cache=False, workers=1, progress=False)
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], -np.tanh(np.maximum(x, 0)), rtol=1e-6)
