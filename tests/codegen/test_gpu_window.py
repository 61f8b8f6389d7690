"""Threads that walk sliding windows: right on odd shapes in every order, each row loaded once, chosen by price."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from roller import ConstructOptions, ops
from roller.backends.cuda import toolchain
from roller.compiler.pipeline import lower
from roller.construction.constructor import program_from_row
from roller.emulator import prove
from roller.errors import BuildError
from roller.perf.tile_batch import batch_of
from roller.runtime.check import check
from roller.templates.common.forms import canonical_forms
from roller.tile import RProgram

SPEC = roller.load_spec("v100")
DEPTHWISE = ops.depthwise_conv2d(2, 5, 13, 11, 3, 3, padding=1)
STRIDED = ops.depthwise_conv2d(1, 3, 18, 16, 5, 5, padding=2, stride=2, epilogue=("bias", "relu"))
LAST = ops.depthwise_conv2d(2, 12, 11, 9, 3, 3, padding=1, layout="NHWC", kernel_layout="HWIO", epilogue=("bias",))
DILATED = ops.depthwise_conv2d(1, 6, 9, 9, 3, 3, dilation=2)
#: Expression, outputs of a thread, threads of a block, staged; "c" stands for the fused axis too.
CASES = {
    "in place": (DEPTHWISE, {"ho": 4, "wo": 3}, {"c": 3, "ho": 2, "wo": 4}, False),
    "staged": (DEPTHWISE, {"ho": 4, "wo": 4}, {"c": 3, "ho": 2, "wo": 3}, True),
    "staged, nothing padded": (ops.pool2d("max", 1, 2, 9, 15, 3, 3), {"ho": 7, "wo": 4}, {"wo": 4}, True),
    "one output": (DEPTHWISE, {}, {"c": 2, "ho": 3, "wo": 11}, False),
    "two images": (DEPTHWISE, {"n": 2, "ho": 13}, {"wo": 11}, False),
    "two channels": (DEPTHWISE, {"c": 2, "ho": 7}, {"c": 2, "wo": 11}, True),
    "strided": (STRIDED, {"ho": 4, "wo": 3}, {"c": 3, "wo": 4}, False),
    "strided and staged in vectors": (STRIDED, {"ho": 5, "wo": 2}, {"c": 2, "ho": 2, "wo": 2}, True),
    "dilated": (ops.depthwise_conv2d(1, 2, 15, 14, 3, 2, padding=2, dilation=2), {"ho": 6, "wo": 2}, {"wo": 8}, True),
    "dilated, one column": (DILATED, {"ho": 2}, {"c": 6, "ho": 2, "wo": 2}, True),
    "dilated, in place": (DILATED, {"ho": 2}, {"c": 6, "ho": 2, "wo": 2}, False),
    "columns alone": (ops.depthwise_conv2d(1, 3, 4, 17, 1, 5, padding=2), {"wo": 6}, {"c": 3, "ho": 4, "wo": 3}, True),
    "gaps": (ops.depthwise_conv2d(1, 3, 13, 13, 3, 1, stride=2), {"ho": 3, "wo": 3}, {"c": 2, "wo": 3}, False),
    "channels last": (LAST, {"ho": 3, "wo": 2, "c": 4}, {"c": 3, "wo": 2, "ho": 2}, False),
    "channels last, staged": (LAST, {"ho": 4, "wo": 3, "c": 2}, {"c": 6, "wo": 2}, True),
    "channels last, odd": (ops.depthwise_conv2d(1, 5, 9, 8, 5, 3, stride=2, layout="NHWC", kernel_layout="OHWI"),
                           {"ho": 3, "c": 1}, {"c": 5, "wo": 3}, False),
    "channels last, half": (ops.pool2d("max", 1, 16, 9, 8, 3, 3, padding=1, layout="NHWC", dtype="float16"),
                            {"ho": 3, "wo": 2, "c": 8}, {"c": 2, "wo": 4}, False),
    "half": (ops.depthwise_conv2d(1, 4, 12, 16, 3, 3, padding=1, dtype="float16"), {"ho": 4, "wo": 4}, {"wo": 4}, True),
    "max": (ops.pool2d("max", 2, 3, 17, 15, 3, 3, padding=1, stride=2), {"ho": 4, "wo": 2}, {"c": 4, "wo": 4}, True),
    "average": (ops.pool2d("avg", 2, 3, 9, 13, 3, 2, padding=1, count_include_pad=False), {"ho": 5}, {"wo": 14}, False),
}  # fmt: skip


def program(expr, register, threads, staged):
    """A window program with the given outputs per thread and threads per block, laid out as construction does."""
    form = canonical_forms(expr, ConstructOptions())[0]
    reduced = {a.name: a.extent for a in form.anchor.reduction_axes}
    names = {a.name for a in form.axes}
    outputs, count = ({k if k in names else "n*c": v for k, v in d.items()} for d in (register, threads))
    tile = tuple(reduced.get(a.name, outputs.get(a.name, 1)) for a in form.axes)
    block = tuple(t * (1 if a.name in reduced else count.get(a.name, 1)) for a, t in zip(form.axes, tile, strict=True))
    operands = (form.anchor.loads[0].tensor,) if staged else ()
    made = RProgram(form, "gpu", "window", (("register", tile), ("shared", block)), (), operands)
    return program_from_row(batch_of([made]).without_vectors(), 0, SPEC)


@pytest.mark.parametrize("name", CASES)
def test_windows_are_right_in_every_order(name):
    expr, register, threads, staged = CASES[name]
    found = program(expr, register, threads, staged)
    verdict = prove(lower(found, expr, SPEC), compare=lambda *a: check(*a).message)
    assert verdict.ok, f"{found}: {verdict}"


def test_every_row_is_loaded_once():
    """Seven outputs under 3x3 windows read nine rows of three elements, not 63."""
    source = lower(program(DEPTHWISE, {"ho": 7}, {"wo": 11}, False), DEPTHWISE, SPEC).source
    rows = [int(n) for n in re.findall(r"for \(int p\w* = 0; p\w* < (\d+); \+\+p\w*\)", source)]
    assert rows == [3] * 9 and source.count("= X_ptr[") == 9


def test_rows_are_read_as_vectors_where_threads_start_at_them():
    source = lower(program(DEPTHWISE, {"ho": 4, "wo": 4}, {"c": 3, "ho": 2, "wo": 3}, True), DEPTHWISE, SPEC).source
    assert "*(float4*)(row_ptr" in source


def test_channels_in_a_row_are_vectors():
    """Image, weights and output: 128 bits at once where a thread has four channels."""
    source = lower(program(LAST, {"ho": 3, "wo": 2, "c": 4}, {"c": 3, "wo": 5}, False), LAST, SPEC).source
    for part in ("*(float4*)(X_ptr", "*(float4*)(W_ptr", "*(float4*)(Y_ptr"):
        assert part in source


@pytest.mark.parametrize("device", ["v100", "a100", "h100"])
@pytest.mark.parametrize(
    "expr",
    [ops.depthwise_conv2d(128, 96, 83, 83, 7, 7, padding=3), ops.pool2d("avg", 128, 84, 42, 42, 3, 3, padding=1)],
    ids=["depthwise", "pooling"],
)
def test_construction_chooses_them_by_price(expr, device):
    walked = roller.construct(expr, device=device)
    without = roller.construct(expr, device=device, options=ConstructOptions(windows=False))
    assert walked[0].program.structure == "window"
    assert {c.program.structure for c in without} == {"tiled"}
    assert walked[0].estimate.seconds < without[0].estimate.seconds


def test_blocks_of_partly_filled_warps_say_so():
    """252 threads: twelve images of 21 columns."""
    best = roller.construct(ops.depthwise_conv2d(128, 336, 21, 21, 3, 3, padding=1), device="v100")[0].program
    assert best.threads_per_block % SPEC.teu.lanes and "execution_unit" in best.relaxed


def test_what_is_no_window_says_so():
    expr = ops.matmul(64, 64, 64)
    matmul = roller.construct(expr, SPEC, top_k=1)[0].program
    with pytest.raises(BuildError, match="needs a reduction over windows of one operand"):
        lower(replace(matmul, structure="window", staged=()), expr, SPEC)


@pytest.mark.skipif(toolchain.available() is not None, reason="needs NVRTC")
@pytest.mark.parametrize(("device", "arch"), [("v100", "sm_70"), ("a100", "sm_80"), ("h100", "sm_90")])
@pytest.mark.parametrize(
    "expr",
    [
        ops.depthwise_conv2d(128, 96, 165, 165, 7, 7, stride=2, padding=3),
        ops.depthwise_conv2d(128, 672, 11, 11, 5, 5, padding=2),
        ops.depthwise_conv2d(32, 128, 56, 56, 3, 3, padding=1, layout="NHWC", kernel_layout="HWIO"),
        ops.pool2d("avg", 128, 84, 83, 83, 3, 3, stride=2, padding=1),
    ],
    ids=["7x7 s2", "small images", "channels last", "pooling"],
)
def test_walks_stay_in_registers(expr, device, arch):
    best = roller.construct(expr, device, top_k=1)[0]
    assert best.program.structure == "window"
    built = toolchain.build(lower(best.program, expr, roller.load_spec(device)))
    assert built.target["arch"].startswith(arch) and built.build["spill_bytes"] == 0
    assert "bytes stack frame" not in built.build["log"] or "0 bytes stack frame" in built.build["log"]
