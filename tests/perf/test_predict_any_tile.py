"""predict() prices any tile: names of published tables, grouped axes, ragged blocks; counts against enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roller
from roller import ops
from roller.construction.explicit_tiles import program_from_tiles
from roller.errors import TileError
from tests.offenders import every
from tests.tile.instructions import Load, Store, instructions

V100 = roller.load_spec("v100")
MATMUL = ops.matmul(256, 192, 96)
HALF = ops.matmul(1024, 512, 1024, dtype="float16")
CONV = ops.conv2d(4, 24, 13, 13, 40, 3, 3, stride=2, padding=1)
POINTWISE = ops.conv2d(4, 24, 14, 14, 40, 1, 1)


@every("shared", ["shared", "smem", "scratchpad", "lds", "block"])
@every("register", ["register", "reg", "thread"])
def test_layers_go_by_the_names_of_published_tables(shared, register):
    named = roller.predict(MATMUL, "v100", {shared: (64, 32, 8), register: (4, 4, 1)})
    assert named == roller.predict(MATMUL, "v100", {"shared": (64, 32, 8), "register": (4, 4, 1)})


def test_a_register_tile_may_leave_out_the_reductions():
    assert roller.predict(MATMUL, "v100", {"smem": (64, 32, 8), "reg": (4, 4)}) == roller.predict(
        MATMUL, "v100", {"smem": (64, 32, 8), "reg": (4, 4, 1)}
    )


def test_the_columns_of_a_published_table():
    """Row RM_4096 of ``v100_tiles.csv``: smem_tile 128x64, rstep 32, reg_tile 8x4."""
    expr = ops.matmul(4096, 4096, 4096)
    row = roller.predict(expr, "v100", {"smem_tile": (128, 64), "rstep": 32, "reg_tile": (8, 4)})
    assert row == roller.predict(expr, "v100", {"shared": (128, 64, 32), "register": (8, 4, 1)})
    assert row == roller.predict(expr, "v100", {"smem": {"i": 128, "j": 64}, "rstep": 32, "reg": (8, 4)})
    grouped = roller.predict(CONV, "v100", {"smem_tile": (40, 64), "rstep": 16, "reg_tile": (5, 4)})
    assert grouped == roller.predict(CONV, "v100", {"smem": (40, 64, 16), "reg": (5, 4)})
    own = roller.predict(CONV, "v100", {"smem": (1, 40, 4, 4), "rstep": (8, 3, 3), "reg": {"f": 5}})
    assert own == roller.predict(CONV, "v100", {"smem": (1, 40, 4, 4, 8, 3, 3), "reg": {"f": 5}})
    with pytest.raises(TileError, match="expected 3 extents"):
        roller.predict(expr, "v100", {"smem": (128, 64), "rstep": (8, 8), "reg": (8, 4)})


@pytest.mark.parametrize("expr", [CONV, POINTWISE], ids=["3x3", "1x1"])
def test_a_convolution_is_tiled_by_its_own_axes_or_as_implicit_gemm(expr):
    gemm = {"smem": {"f": 40, "n*ho*wo": 64, "c*kh*kw": 16}, "reg": {"f": 5, "n*ho*wo": 4}}
    by_name = roller.predict(expr, "v100", gemm)
    spelled = {"smem": {"f": 40, "ho*wo*n": 64, "kh * kw * c": 16}, "reg": {"f": 5, "wo*n*ho": 4}}
    assert by_name == roller.predict(expr, "v100", spelled)
    assert by_name == roller.predict(expr, "v100", {"smem": (40, 64, 16), "reg": (5, 4)})
    program = program_from_tiles(expr, V100, gemm)
    assert program.axis_names == ("f", "n*ho*wo", "c*kh*kw") and program.threads_per_block == 8 * 16
    own = {"smem": {"n": 1, "f": 40, "ho": 4, "wo": 4, "c": 8, "kh": 1, "kw": 1}, "reg": {"f": 5}}
    assert roller.predict(expr, "v100", own).seconds > 0


def test_fused_axes_are_named_too():
    expr = ops.elementwise("relu", (8, 16, 32))
    assert roller.predict(expr, "v100", {"block": [1024], "thread": [4]}).seconds > 0
    assert roller.predict(POINTWISE, "v100", {"block": {"ho*wo": 28, "f": 8}, "thread": {"f": 2}}).seconds > 0


def test_axes_of_no_form_are_an_error_that_names_the_expressions_own():
    with pytest.raises(TileError, match=r"unknown axis 'n\*ho'.*Use \('n', 'f', 'ho', 'wo', 'c', 'kh', 'kw'\)"):
        roller.predict(CONV, "v100", {"smem": {"n*ho": 8}})


def test_threads_at_the_edge_of_a_ragged_block_compute_for_nobody():
    """100 rows by 8 per thread: 13 threads compute 104, and the grid advances by 100."""
    expr = ops.matmul(10400, 64, 512)
    ragged, whole = (
        roller.predict(expr, "v100", {"smem": {"i": rows, "j": 64, "k": 16}, "reg": {"i": 8, "j": 4}})
        for rows in (100, 104)
    )
    blocks = {100: 104, 104: 100}  # one wave of either on a V100: the arithmetic of a block is the same
    assert ragged.terms["blocks_per_unit"] >= 2 and ragged.terms["waves"] == whole.terms["waves"] == 1
    assert ragged.terms["compute_s"] == pytest.approx(whole.terms["compute_s"])
    loads = {rows: 10400 * 512 * 4 + 64 * 512 * 4 * n for rows, n in blocks.items()}
    assert ragged.terms["l2_bytes"] - whole.terms["l2_bytes"] == pytest.approx(loads[100] - loads[104])


def test_ragged_blocks_are_priced_but_not_programs():
    tiles = {"smem": {"i": 100, "j": 64, "k": 16}, "reg": {"i": 8, "j": 4}}
    assert np.isfinite(roller.predict(MATMUL, "v100", tiles).seconds)
    with pytest.raises(TileError, match=r"axis 'i': expected a multiple of the layer above \(8\), got 100"):
        program_from_tiles(MATMUL, V100, tiles)
    ragged = {"register": {"i": 4, "j": 16}, "l1": {"i": 6, "j": 16}}
    assert np.isfinite(roller.predict(MATMUL, "cpu-avx512", ragged).seconds)
    with pytest.raises(TileError, match="expected a multiple of the layer above"):
        program_from_tiles(MATMUL, roller.load_spec("cpu-avx512"), ragged)


def test_lanes_without_work_cost_as_much_as_those_with():
    """15 threads of a warp: as long as 16, though fewer points are computed."""
    expr = ops.matmul(1600, 1680, 256)
    few, full = (
        roller.predict(expr, "v100", {"smem": (4 * rows, 16, 8), "reg": (4, 4)}).terms["compute_s"] for rows in (3, 4)
    )
    assert few / full == pytest.approx(-(-1600 // 12) / -(-1600 // 16), rel=0.05)


def test_a_step_deeper_than_the_reduction_is_padding():
    deep, exact = (
        roller.predict(ops.matmul(256, 256, 24), "v100", {"smem": (64, 64, k), "reg": (4, 4)}) for k in (32, 24)
    )
    assert deep.terms["compute_s"] / exact.terms["compute_s"] == pytest.approx(32 / 24, rel=0.1)
    assert deep.terms["l2_bytes"] == pytest.approx(exact.terms["l2_bytes"], rel=0.1)


def test_a_reduction_takes_threads_over_its_outputs_alone_or_over_its_points():
    """128 outputs, 32 points a step: 128 threads as published tables mean it; 4096 are no block."""
    expr = ops.reduce("sum", (65536, 1024), (1,))
    published = roller.predict(expr, "v100", {"smem": (128, 32), "reg": (1, 1)})
    spread = roller.predict(expr, "v100", {"smem": (8, 1024), "reg": (1, 32)})
    assert published.terms["scratchpad_bytes"] >= 128 * 32 * 4 and spread.terms["scratchpad_bytes"] == 0
    assert published.bottleneck == spread.bottleneck == "dram"
    with pytest.raises(TileError, match="threads"):
        roller.predict(expr, "v100", {"smem": (2048, 32), "reg": (1, 1)})


@given(
    block=st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(1, 64)),
    register=st.tuples(st.integers(1, 9), st.integers(1, 9)), device=st.sampled_from(["v100", "k80", "mi50"]),
)  # fmt: skip
def test_every_tile_is_priced_or_exceeds_a_limit(block, register, device):
    """Within the limits of the device there is a time, and it is no less than the arithmetic takes."""
    expr = ops.matmul(300, 200, 100)
    register = tuple(min(r, b) for r, b in zip(register, block, strict=False))
    try:
        estimate = roller.predict(expr, device, {"smem": block, "reg": register})
    except TileError as error:
        assert any(word in str(error) for word in ("threads", "registers", "scratchpad"))
        return
    assert np.isfinite(estimate.seconds)
    assert estimate.seconds >= expr.flops / (2 * roller.load_spec(device).ops_per_s("fma"))


def _touched(program, tensor: str, transaction: int) -> int:
    """Bytes of transactions, run by run, that all loads or stores of one tensor touch: every address enumerated."""
    shape, total = program.expr.tensors[tensor].shape, 0
    for step in instructions(program):
        if not isinstance(step, (Load, Store)) or step.tensor != tensor:
            continue
        inside = [[x for x in range(*r) if 0 <= x < n] for r, n in zip(step.region.ranges, shape, strict=True)]
        flat = np.sort([np.ravel_multi_index(point, shape) for point in itertools.product(*inside)])
        for run in np.split(flat, np.flatnonzero(np.diff(flat) != 1) + 1):
            total += len({int(x) * 4 // transaction for x in run}) * transaction
    return total


@pytest.mark.parametrize(
    ("expr", "tiles"),
    [
        (ops.matmul(40, 70, 67), {"smem": (16, 32, 12), "reg": (2, 2)}),
        (ops.matmul(64, 100, 50), {"smem": (32, 20, 10), "reg": (4, 2)}),
        (ops.matmul(33, 64, 48), {"smem": (8, 24, 6), "reg": (1, 3)}),
        (ops.conv2d(1, 4, 17, 19, 6, 3, 3), {"smem": (1, 2, 4, 6, 2, 3, 3), "reg": (1, 2, 1, 1, 1, 1, 1)}),
        (ops.conv2d(2, 3, 16, 16, 4, 3, 3, padding=1), {"smem": (1, 4, 8, 8, 3, 3, 3), "reg": (1, 2, 1, 1, 1, 1, 1)}),
    ],
    ids=["prime pitch", "unaligned", "ragged", "conv", "halo"],
)  # fmt: skip
@pytest.mark.parametrize("device", ["v100", "mi50"])
def test_transactions_of_unaligned_tiles_by_enumeration(expr, tiles, device):
    """Every row of every tile of the launch, at the offset it has."""
    transaction = roller.load_spec(device).layer("l2").transaction_bytes
    program = program_from_tiles(expr, roller.load_spec(device), tiles)
    counted = sum(_touched(program, t.name, transaction) for t in expr.inputs)
    counted += _touched(program, expr.output_tensors[0].name, transaction)
    assert roller.predict(expr, device, tiles).terms["l2_bytes"] == counted


@pytest.mark.parametrize(
    ("stride", "width", "degree"), [(1, 32, 1), (2, 32, 2), (4, 32, 4), (2, 16, 2), (3, 32, 1)]
)  # fmt: skip
def test_conflicts_of_a_window_read_with_a_stride(stride, width, degree):
    """A warp reads every stride-th word of its rows: gcd(stride, 32) lanes meet in one bank."""
    expr = ops.pool2d("max", 8, 8, 67, 131, 3, 3, stride=stride)
    tiles = {"smem": {"n": 1, "c": 1, "ho": 64 // width, "wo": width, "kh": 3, "kw": 3}, "reg": {}}
    estimate = roller.predict(expr, "v100", tiles)
    program = program_from_tiles(expr, V100, tiles)
    padding = dict(program.storage_padding).get("X", 0)
    pitch = (width - 1) * stride + 3 + padding
    lanes = [(lane // width, lane % width) for lane in range(32)]
    banks: dict[int, set[int]] = {}
    for row, column in lanes:
        word = row * stride * pitch + column * stride
        banks.setdefault(word % 32, set()).add(word)
    assert estimate.terms["bank_conflicts"] == max(len(w) for w in banks.values()) == degree


def test_a_block_that_no_unit_can_hold_is_refused():
    expr = ops.parse("depthwise_conv2d(n=2,c=33,h=15,w=15,kh=3,kw=3)")
    register = {"n": 1, "c": 1, "ho": 13, "wo": 2, "kh": 1, "kw": 3}  # no walk: that holds three rows of outputs
    shared = {"n": 4, "c": 33, "ho": 13, "wo": 10, "kh": 3, "kw": 3}
    tiles = {"register": register, "shared": shared}
    for price in (lambda: roller.predict(expr, "v100", tiles), lambda: program_from_tiles(expr, V100, tiles)):
        with pytest.raises(TileError, match=r"fits one unit of v100 \(65536 registers.* got 660 threads with 112"):
            price()
    fits = roller.predict(expr, "v100", {"register": register, "shared": {**shared, "n": 2}})
    assert np.isfinite(fits.seconds) and fits.terms["blocks_per_unit"] >= 1


def test_a_reduction_step_that_contradicts_the_tile_is_refused():
    same = roller.predict(MATMUL, "v100", {"smem": (64, 32, 8), "reg": (4, 4), "rstep": 8})
    assert same == roller.predict(MATMUL, "v100", {"smem": (64, 32, 8), "reg": (4, 4)})
    for shared in ((64, 32, 8), {"i": 64, "j": 32, "k": 8}):
        with pytest.raises(TileError, match=r"'rstep': expected the reduction extents .*\{'k': 8\}.*got 16"):
            roller.predict(MATMUL, "v100", {"smem": shared, "reg": (4, 4), "rstep": 16})
    with pytest.raises(TileError, match=r"'rstep': expected 1 extents, one for each .*\['k'\], got \(8, 8\)"):
        roller.predict(MATMUL, "v100", {"smem": {"i": 64, "j": 32}, "reg": (4, 4), "rstep": (8, 8)})
    with pytest.raises(TileError, match="a CPU's reduction piece is the reduction extent of l2"):
        roller.predict(MATMUL, "cpu-avx2", {"register": (4, 8, 1), "rstep": 8})


@pytest.mark.parametrize(("device", "layer"), [("v100", "shared"), ("cpu-avx2", "l1"), ("v100", "register")])
def test_extents_too_large_to_count_with_are_refused(device, layer):
    for extent in (2**31, 2**63, 10**30):
        with pytest.raises(TileError, match=f"layer '{layer}', axis 'i': expected at most 2147483647, got {extent}"):
            roller.predict(MATMUL, device, {layer: {"i": extent}})
    with pytest.raises(TileError, match=r"expected at most \d+ points in all"):
        roller.predict(MATMUL, device, {layer: (2**31 - 1, 2**31 - 1, 2**31 - 1)})
    if device == "v100":
        with pytest.raises(TileError, match=r"the block has|registers per thread"):
            roller.predict(MATMUL, device, {layer: {"i": 2**31 - 1, "j": 2**21}})
    else:  # padding, as far as it can be counted
        assert 0 < roller.predict(MATMUL, device, {layer: {"i": 2**31 - 1, "j": 2**21}}).seconds < np.inf


def test_reduction_points_named_for_a_thread_change_nothing():
    """Published tables give a thread no reduction of its own; measured rates change by at most 5 % with the step."""
    times = {
        k: roller.predict(
            MATMUL, "v100", {"shared": {"i": 64, "j": 64, "k": 32}, "register": {"i": 4, "j": 4, "k": k}}
        ).seconds
        for k in (1, 4, 16)
    }
    assert len(set(times.values())) == 1


@pytest.mark.parametrize("device", ["v100", "a100", "h200"])
@pytest.mark.parametrize(
    "expr",
    [ops.matmul(512, 256, 128, dtype="float16"), ops.conv2d(4, 32, 14, 14, 48, 3, 3, padding=1, dtype="float16")],
)
def test_tiles_of_a_fragment_are_priced_as_construction_prices_them(expr, device):
    options = roller.ConstructOptions(pipelining=False, split_k=False)
    found = [c for c in roller.construct(expr, device, options=options) if c.program.fragment is not None]
    assert len(found) >= 2
    for c in found:
        tiles = {layer: c.program.tile(layer) for layer in c.program.layers}
        name = c.program.fragment.name
        assert roller.predict(expr, device, tiles, fragment=name).seconds == pytest.approx(c.estimate.seconds)
        del tiles["register"][c.program.matrix_axes[2]]  # one fragment along the reduction, said or not
        assert roller.predict(expr, device, tiles, fragment=name).seconds == pytest.approx(c.estimate.seconds)


@pytest.mark.parametrize("family", ["vnni", "amx"])
def test_tiles_of_a_processors_fragment_are_priced_as_construction_prices_them(family):
    """By its name, and by the name with its axes that programs are printed with."""
    expr = ops.matmul(256, 256, 256, dtype="int8", acc_dtype="int32", out_dtype="int32")
    spec = roller.load_spec("cpu-avx512")
    features = ("features", {"vnni": "avx512vnni", "amx": "amx-int8"}[family])
    spec = replace(spec, target_items=(features, *(i for i in spec.target_items if i[0] != "features")))
    found = [c for c in roller.construct(expr, spec) if c.program.fragment is not None]
    assert len(found) >= 2
    for c in found:
        tiles = {layer: c.program.tile(layer) for layer in c.program.layers}
        name = c.program.fragment.name
        for said in (name, f"{name}:{','.join(c.program.matrix_axes)}"):
            assert roller.predict(expr, spec, tiles, fragment=said).seconds == pytest.approx(c.estimate.seconds)
        assert (
            roller.why_not(expr, spec, tiles, fragment=name).program.partition(" relaxed=")[0]
            == str(c.program).partition(" relaxed=")[0]
        )
        with pytest.raises(TileError, match=r"one that computes matmul .* along .'k', 'j', 'i'"):
            roller.predict(expr, spec, tiles, fragment=f"{name}:k,j,i")
        with pytest.raises(TileError, match="in 'l1', which follows from the other layers, got"):
            roller.predict(expr, spec, {**tiles, "l1": {**tiles["l1"], "k": 2 * tiles["register"]["k"]}}, fragment=name)
        odd = {**tiles, "register": {**tiles["register"], "i": 3, "j": 3}}
        with pytest.raises(TileError, match="whole fragments"):
            roller.predict(expr, spec, odd, fragment=name)


@every(
    ("expr", "device", "tiles", "fragment", "message"),
    [
        (MATMUL, "a100", {}, "mma.m16n8k16.f16.f32", "one that computes matmul .*float16, float32"),
        (MATMUL, "k80", {}, "mma.m16n8k16.f16.f32", "no fragment of k80"),
        (MATMUL, "a100", {}, "mma.m16n8k16.f16.f31", "did you mean 'mma.m16n8k16.f16.f32'"),
        (
            HALF,
            "a100",
            {"register": (16, 12), "shared": (64, 48, 32)},
            "mma.m16n8k16.f16.f32",
            "whole fragments of 16 x",
        ),
        (
            HALF,
            "a100",
            {"register": (16, 16), "shared": (64, 64, 24)},
            "mma.m16n8k16.f16.f32",
            "whole fragments of 16 x",
        ),
        (HALF, "a100", {"register": (16, 8), "shared": (1024, 256, 16)}, "mma.m16n8k16.f16.f32", "the block has"),
        (HALF, "a100", {"register": (256, 256), "shared": (256, 256, 16)}, "mma.m16n8k16.f16.f32", "registers per thr"),
        (
            HALF,
            "a100",
            {"register": (64, 64), "shared": (256, 256, 512)},
            "mma.m16n8k16.f16.f32",
            "bytes of scratchpad",
        ),
    ],
)
def test_tiles_that_are_no_fragments_are_refused(expr, device, tiles, fragment, message):
    with pytest.raises(TileError, match=message):
        roller.predict(expr, device, tiles, fragment=fragment)
