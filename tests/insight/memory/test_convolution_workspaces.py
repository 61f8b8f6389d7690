"""Copies in another layout that cuDNN's workspace holds."""

from __future__ import annotations

from dataclasses import replace

from roller.insight.memory.convolution_workspaces import add_convolution_workspaces, workspace_bytes
from roller.insight.memory.simulate import Library, simulate_memory
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace

MIB = 1 << 20


def tensor(number, shape, dtype="float16", *, innermost=False):
    _, c, h, w = shape
    stride = (c * h * w, 1, w * c, c) if innermost else (c * h * w, h * w, w, 1)
    return TensorRecord(shape, stride, dtype, number)


def convolution(dtype="float16", *, innermost=False, groups=1):
    image = tensor(0, (1, 256, 1024, 2048), dtype, innermost=innermost)
    weight = tensor(1, (256, 256 // groups, 3, 3), dtype)
    return Operator(
        0, "aten.convolution.default", "forward", (image, weight), (replace(image, storage=2),), {"groups": groups}
    )


def test_the_published_convolution_reserves_its_tensors_twice():
    operator = convolution()
    image, weight = 2 * 256 * 1024 * 2048, 2 * 256 * 256 * 9
    assert workspace_bytes(operator) == 2 * image + weight
    events = (AllocEvent(0, image, -1), AllocEvent(1, weight, -1), AllocEvent(2, image, 0))
    trace = Trace((operator,), events, {n: Storage("activation") for n in range(3)}, (0, 1))
    found = simulate_memory(trace, library=Library(workspace_bytes=0, converts_layouts=True))
    assert abs(found.peak.reserved_bytes / (4.02 * 2**30) - 1) < 0.01  # pytorch/pytorch#123533
    assert found.by_kind()["workspace"] == workspace_bytes(operator)


def test_nothing_is_converted_where_channels_are_innermost_or_no_matrix_unit_is_used():
    for other in (convolution(innermost=True), convolution("float32"), convolution(groups=256)):
        assert workspace_bytes(other) == 0
    assert workspace_bytes(replace(convolution(), name="aten.mm.default")) == 0


def test_a_gradient_converts_for_one_call_at_a_time():
    forward = convolution()
    image, weight = forward.inputs
    backward = Operator(
        0, "aten.convolution_backward.default", "backward", (forward.outputs[0], image, weight),
        (replace(image, storage=4), replace(weight, storage=5)), {"groups": 1},
    )  # fmt: skip
    assert workspace_bytes(backward) == workspace_bytes(forward)


def test_a_workspace_lies_between_the_results_of_its_operator_and_what_it_frees():
    operators = (convolution(), replace(convolution(), index=1))
    events = [AllocEvent(2, MIB, 0), AllocEvent(3, MIB, 0), FreeEvent(3, 0), AllocEvent(4, MIB, 1)]
    found = list(add_convolution_workspaces(operators, events))
    assert [type(e).__name__[0] + str(e.operator) for e in found] == ["A0", "A0", "A0", "F0", "F0", "A1", "A1", "F1"]
    assert [e.storage for e in found if e.storage < 0] == [-11, -11, -12, -12]
