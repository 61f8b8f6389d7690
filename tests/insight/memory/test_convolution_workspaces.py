"""Copies in another layout that cuDNN's workspace holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller import load_spec
from roller.insight.cost.operator_price import Pricer
from roller.insight.memory.convolution_workspaces import convolution_workspace_bytes, events_with_convolution_workspaces
from roller.insight.memory.simulate import Library, events_with_workspaces, simulate_memory
from roller.insight.trace.torch_release import TorchRelease
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace

MIB = 1 << 20


def tensor(number, shape, dtype="float16", *, innermost=False):
    _, c, h, w = shape
    stride = (c * h * w, 1, w * c, c) if innermost else (c * h * w, h * w, w, 1)
    return TensorRecord(shape, stride, dtype, number)


def convolution(dtype="float16", *, innermost=False, groups=1, size=(1024, 2048), window=3):
    image = tensor(0, (1, 256, *size), dtype, innermost=innermost)
    weight = tensor(1, (256, 256 // groups, window, window), dtype, innermost=innermost)
    arguments = {
        "input": {"tensor": 0}, "weight": {"tensor": 1}, "bias": None, "stride": [1, 1], "padding": [window // 2] * 2,
        "dilation": [1, 1], "transposed": False, "output_padding": [0, 0], "groups": groups,
    }  # fmt: skip
    return Operator(0, "aten.convolution.default", "forward", (image, weight), (replace(image, storage=2),), arguments)


IMAGE, WEIGHT = 2 * 256 * 1024 * 2048, 2 * 256 * 256 * 9
CONVERTS = Library(workspace_bytes=0, converted_dtypes=frozenset({"float16"}))


def published():
    """Return the step of pytorch/pytorch#123533: an image of 256 x 1024 x 2048 and filters of 3 x 3."""
    events = (AllocEvent(0, IMAGE, -1), AllocEvent(1, WEIGHT, -1), AllocEvent(2, IMAGE, 0))
    return Trace((convolution(),), events, {n: Storage("activation") for n in range(3)}, (0, 1))


def test_the_published_convolution_reserves_its_tensors_twice():
    operator, trace = convolution(), published()
    assert convolution_workspace_bytes(operator) == 2 * IMAGE + WEIGHT
    found = simulate_memory(trace, library=CONVERTS)
    assert abs(found.peak.reserved_bytes / (4.02 * 2**30) - 1) < 0.01  # pytorch/pytorch#123533
    assert found.by_kind()["workspace"] == convolution_workspace_bytes(operator)


def test_a_convolution_without_room_for_its_workspace_runs_without_it():
    found = simulate_memory(published(), 5 << 29, library=CONVERTS)
    assert found.fits
    assert found.retries == 1  # cuDNN asked for it, so that what was cached was released
    assert found.peak.requested_bytes == 2 * IMAGE + WEIGHT
    assert "workspace" not in found.by_kind()
    assert not simulate_memory(published(), 1 << 30, library=CONVERTS).fits  # its tensors are no workspace


@pytest.mark.parametrize(
    ("device", "release", "dtype", "case"),
    [
        ("a100", None, "float16", {"window": 1, "size": (56, 56)}),
        ("a100", "2.1", "float16", {"window": 1, "size": (56, 56)}),
        ("a100", None, "float16", {"size": (1, 1)}),
        ("a100", None, "float16", {"size": (56, 56)}),
        ("a100", None, "float16", {"size": (56, 56), "innermost": True}),
        ("a100", None, "float16", {"size": (56, 56), "groups": 256}),
        ("t4", None, "bfloat16", {"size": (56, 56)}),
        ("t4", None, "float16", {"size": (56, 56)}),
        ("p100", None, "float16", {"size": (56, 56)}),
        ("mi210", None, "float16", {"size": (56, 56)}),
    ],
)
def test_memory_converts_what_the_price_converts(device, release, dtype, case):
    spec, operator = load_spec(device), convolution(dtype, **case)
    kernels = Pricer(spec, release=TorchRelease.parse(release)).price_operator(operator).kernels
    library = replace(Library.of(spec, {"torch_release": release}), workspace_bytes=0)
    events = events_with_workspaces(Trace((operator,), (AllocEvent(2, MIB, 0),), {}, (0, 1)), library)
    assert (kernels > 1) == (len(events) > 1)


def test_nothing_is_converted_where_channels_are_innermost_or_no_matrix_unit_is_used():
    for other in (convolution(innermost=True), convolution("float32"), convolution(groups=256)):
        assert convolution_workspace_bytes(other) == 0
    assert convolution_workspace_bytes(replace(convolution(), name="aten.mm.default")) == 0


def test_a_gradient_converts_for_one_call_at_a_time():
    forward = convolution()
    image, weight = forward.inputs
    both = replace(image, storage=4), replace(weight, storage=5)
    for outputs, size in ((both, 2 * IMAGE + WEIGHT), (both[:1], 2 * IMAGE + WEIGHT), (both[1:], 2 * IMAGE + WEIGHT),
                          ((TensorRecord((256,), (1,), "float16", 6),), 0)):  # fmt: skip
        backward = Operator(
            0, "aten.convolution_backward.default", "backward", (forward.outputs[0], image, weight), outputs,
            {"groups": 1},
        )  # fmt: skip
        assert convolution_workspace_bytes(backward) == size


def test_channels_that_are_no_whole_vectors_are_padded_in_the_copy():
    image, weight = tensor(0, (8, 3, 64, 64)), tensor(1, (64, 3, 7, 7))
    operator = Operator(0, "aten.convolution.default", "forward", (image, weight), (tensor(2, (8, 64, 64, 64)),))
    assert convolution_workspace_bytes(operator) == 2 * (8 * 4 * 64 * 64 + 64 * 4 * 7 * 7 + 8 * 64 * 64 * 64)


def test_a_workspace_lies_between_the_results_of_its_operator_and_what_it_frees():
    operators = (convolution(), replace(convolution(), index=1))
    events = [AllocEvent(2, MIB, 0), AllocEvent(3, MIB, 0), FreeEvent(3, 0), AllocEvent(4, MIB, 1)]
    found = list(events_with_convolution_workspaces(operators, events))
    assert [type(e).__name__[0] + str(e.operator) for e in found] == ["A0", "A0", "A0", "F0", "F0", "A1", "A1", "F1"]
    assert [e.storage for e in found if e.storage < 0] == [-11, -11, -12, -12]
