"""Streams: whole tiles loaded before the first store, odd ends, and transposes through the scratchpad."""

import pytest

pytest.importorskip("tvm")

import roller
from benchmarks import ptx
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.emulator import prove
from roller.expr import Axis, Call, Load, Stage, Tensor, TensorExpr, axis_index
from roller.expr.canonical import fuse_axes
from roller.runtime.check import check
from roller.templates.gpu.emit.cuda import lower
from roller.tile import RProgram
from roller.tile.staged_tile_layout import lane_reads

needs_cuda = pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")


def transpose(rows, columns, dtype="float32"):
    i, j = axis_index("i"), axis_index("j")
    out = Stage(Tensor("Y", (rows, columns), dtype), (Axis("i", rows), Axis("j", columns)), (i, j), Load("X", (j, i)))
    return TensorExpr("transpose", (Tensor("X", (columns, rows), dtype),), (out,), ("Y",))


def channels_last(n, channels, pixels, dtype="float32"):
    """NCHW to NHWC with a bias per channel."""
    a, c, h = axis_index("n"), axis_index("c"), axis_index("h")
    axes = (Axis("n", n), Axis("h", pixels), Axis("c", channels))
    value = Call("add", (Load("X", (a, c, h)), Load("B", (c,))))
    inputs = (Tensor("X", (n, channels, pixels), dtype), Tensor("B", (channels,), dtype))
    return TensorExpr(
        "channels_last", inputs, (Stage(Tensor("Y", (n, pixels, channels), dtype), axes, (a, h, c), value),), ("Y",)
    )


SUM = ops.elementwise(("add", "relu"), (15, 66))
#: Expression, register and block tile, and the other fields of the program.
PROGRAMS = {
    "four vectors": (SUM, (16,), (512,), {"vector_axis": "d0*d1", "vector_elements": 4}),
    "vectors longer than what is left": (SUM, (8,), (256,), {"vector_axis": "d0*d1", "vector_elements": 8}),
    "single elements": (ops.elementwise(("relu",), (10007,)), (8,), (1024,), {}),
    "transposed": (transpose(37, 61), (4, 4), (32, 32), {"vector_axis": "j", "vector_elements": 4, "staged": ("X",),
                                                         "storage_padding": (("X", 1),)}),
    "transposed, no padding": (transpose(64, 64), (2, 2), (16, 32), {"staged": ("X",)}),
    "transposed, vectors": (transpose(40, 64), (1, 4), (32, 32), {"vector_axis": "j", "vector_elements": 4,
                                                                  "staged": ("X",), "storage_padding": (("X", 1),)}),
    "channels last": (channels_last(2, 35, 51, "float16"), (1, 4, 8), (1, 32, 32), {
        "vector_axis": "c", "vector_elements": 8, "staged": ("X", "B"), "storage_padding": (("X", 1),)}),
    "channels last, bias in place": (channels_last(3, 24, 50), (1, 2, 4), (1, 32, 16), {
        "vector_axis": "c", "vector_elements": 4, "staged": ("X",), "storage_padding": (("X", 1),)}),
}  # fmt: skip


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_is_right_in_every_order(built, name, interleaved):
    expr, register, block, fields = PROGRAMS[name]
    tiles = (("register", register), ("shared", block))
    program = RProgram(fuse_axes(expr), "gpu", "streaming", tiles, interleaved=interleaved, **fields)
    proof = prove(lower(program, expr, "sm_70", "test"), compare=lambda *a: check(*a).message, cache_dir=built)
    assert proof.ok, str(proof)


@needs_cuda
def test_all_loads_come_before_the_first_store():
    expr = ops.elementwise(("add",), (128, 1024))
    program = roller.construct(expr, device="v100", top_k=1)[0].program
    source = pipeline.lower(program, expr, roller.load_spec("v100")).source
    (kernel,) = ptx.kernels(toolchain.compile_to_ptx(source, "sm_80")).values()
    classes = [ptx.instruction_class(x) for x in kernel.lines]
    loads = [n for n, c in enumerate(classes) if c.startswith("global_load")]
    stores = [n for n, c in enumerate(classes) if c.startswith("global_store")]
    assert {classes[n] for n in loads + stores} == {"global_load_128", "global_store_128"}
    assert len(loads) == 2 * len(stores) >= 4 and max(loads) < min(stores)


@pytest.mark.parametrize("device", ["v100", "h200", "mi50"])
@pytest.mark.parametrize("expr", [transpose(4096, 4096), channels_last(32, 256, 3136)], ids=lambda e: e.name)
def test_what_is_contiguous_elsewhere_goes_through_the_scratchpad(expr, device):
    spec = roller.load_spec(device)
    program = roller.construct(expr, spec, top_k=1)[0].program
    assert "X" in program.staged
    # A TEU stores whole lines and copies whole lines, and its reads of the tile meet few conflicts.
    block = program.block_tile
    contiguous = {"transpose": ("i", "j"), "channels_last": ("h", "c")}[expr.name]
    assert all(block[a] * 4 >= 64 for a in contiguous)
    shared = spec.layer("shared")
    reads = lane_reads(program, spec.teu.lanes)["X"]
    assert (
        reads.worst_conflict_degree(dict(program.storage_padding).get("X", 0), shared.banks, shared.bank_width_bytes)
        <= 2
    )


def test_what_agrees_does_not():
    for expr in (SUM, ops.elementwise(("relu",), (128, 1024))):
        assert not roller.construct(expr, device="h200", top_k=1)[0].program.staged
