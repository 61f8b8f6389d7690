"""Programs for matrix units: made where a fragment computes what the expression asks for, aligned, within limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ConstructOptions, ops
from roller.templates.common.forms import canonical_forms
from roller.templates.gpu.matrix.candidates import REGISTER_STAGES, matrix_candidates, matrix_forms
from roller.tile import RProgram
from roller.tile.geometry import Geometry
from roller.tile.matrix_operands import matrix_block_scratchpad_bytes, phase_row_addresses, program_operands
from tests.cases import arrays_for
from tests.goldens import assert_golden
from tests.offenders import every
from tests.tile.instructions import instructions
from tests.tile.programs import assert_interprets

A100 = roller.load_spec("a100")
F16 = {"dtype": "float16"}
#: Expression, and the fragment that computes it on an A100.
MADE = {
    "matmul": (ops.matmul(256, 200, 96, **F16), "mma.m16n8k16.f16.f32"),
    "transposed": (ops.matmul(256, 200, 96, transpose_a=True, transpose_b=True, **F16), "mma.m16n8k16.f16.f32"),
    "batched": (ops.matmul(64, 72, 96, batch=6, dtype="bfloat16"), "mma.m16n8k16.bf16.f32"),
    "half sums": (ops.matmul(256, 200, 96, acc_dtype="float16", **F16), "mma.m16n8k16.f16.f16"),
    "bytes": (ops.matmul(256, 200, 96, dtype="int8"), "mma.m16n8k32.s8.s32"),
    "epilogue": (ops.matmul(256, 200, 96, epilogue=("bias", "relu"), **F16), "mma.m16n8k16.f16.f32"),
    "conv2d": (ops.conv2d(4, 32, 13, 13, 48, 3, 3, padding=1, **F16), "mma.m16n8k16.f16.f32"),
    "conv2d 1x1": (ops.conv2d(4, 32, 14, 14, 48, 1, 1, **F16), "mma.m16n8k16.f16.f32"),
    "conv2d NHWC": (ops.conv2d(4, 32, 13, 13, 48, 3, 3, stride=2, layout="NHWC", **F16), "mma.m16n8k16.f16.f32"),
}
#: No product of two operands that a fragment takes: exact arithmetic, one operand per output, another sum, none.
NOT_MADE = {
    "float32": ops.matmul(256, 200, 96),
    "float64": ops.matmul(256, 200, 96, dtype="float64"),
    "unsigned bytes": ops.matmul(256, 200, 96, dtype="uint8"),
    "depthwise": ops.depthwise_conv2d(4, 32, 14, 14, 3, 3, padding=1, **F16),
    "pooling": ops.pool2d("avg", 4, 32, 14, 14, 3, 3, **F16),
    "row sums": ops.reduce("sum", (256, 200), (1,), **F16),
    "softmax": ops.softmax((256, 200), **F16),
    "relu": ops.elementwise("relu", (256, 200), **F16),
}


def _fragments(expr: roller.TensorExpr, spec: roller.DeviceSpec) -> set[str]:
    forms = canonical_forms(expr, ConstructOptions())
    return {f.fragment.name for form in forms for f in matrix_forms(Geometry.of(form), spec)}


def _programs(expr: roller.TensorExpr, spec: roller.DeviceSpec = A100, **options: object) -> list[roller.Candidate]:
    return [c for c in roller.construct(expr, device=spec, **options) if c.program.structure == "matrix"]


def _some(expr: roller.TensorExpr, spec: roller.DeviceSpec = A100, **options: object) -> list[roller.Candidate]:
    """Matrix programs of an expression that has some: at least two, which differ."""
    found = _programs(expr, spec, **options)
    assert len({str(c.program) for c in found}) >= 2
    return found


@pytest.mark.parametrize("name", MADE)
def test_a_fragment_of_the_same_dtypes_computes_products_of_two_operands(name):
    expr, fragment = MADE[name]
    assert _fragments(expr, A100) == {fragment}
    found = _programs(expr)
    assert found and {c.program.fragment.name for c in found} == {fragment}


@pytest.mark.parametrize("name", NOT_MADE)
def test_no_matrix_unit_computes_anything_else(name):
    assert not _fragments(NOT_MADE[name], A100)
    assert not _programs(NOT_MADE[name])


@every("device", ["k80", "mi50", "cpu-avx512"])
@every("name", MADE)
def test_devices_without_fragments_have_no_matrix_programs(name, device):
    assert not _fragments(MADE[name][0], roller.load_spec(device))


def test_a_specification_without_fragments_changes_nothing_else():
    plain = replace(A100, fragments=())
    for expr in (MADE["matmul"][0], NOT_MADE["float32"]):
        geometry = Geometry.of(expr)
        assert not matrix_candidates((geometry,), plain, ConstructOptions())
        texts = [str(c.program) for c in roller.construct(expr, device=plain)]
        assert len(texts) == 10 and all("matrix" not in t for t in texts)
    assert texts == [str(c.program) for c in roller.construct(NOT_MADE["float32"], device=A100)]


def test_expressions_that_forbid_padding_are_not_padded_to_fragments():
    assert not _fragments(replace(MADE["matmul"][0], allow_padding=False), A100)


def test_the_axes_of_both_operands_and_the_assignment_with_less_padding():
    """Eight rows fill a fragment's n, not its m."""
    tall = matrix_forms(Geometry.of(ops.matmul(256, 8, 64, **F16)), A100)
    flat = matrix_forms(Geometry.of(ops.matmul(8, 256, 64, **F16)), A100)
    assert {f.axes for f in tall} == {f.axes for f in flat} == {(0, 1, 2), (1, 0, 2)}
    assert (tall[0].axes, flat[0].axes) == ((0, 1, 2), (1, 0, 2))


@pytest.mark.parametrize("device", ["a100", "h200"])
@pytest.mark.parametrize("name", MADE)
def test_programs_are_aligned_with_their_fragment_and_fit(name, device):
    spec = roller.load_spec(device)
    for c in _some(MADE[name][0], spec):
        p, f = c.program, c.program.fragment
        register, block = p.tile("register"), p.block_tile
        m, n, k = p.matrix_axes
        assert register[k] == f.k and not register[m] % f.m and not register[n] % f.n
        assert all(block[a] == 1 for a in block if a not in p.matrix_axes), str(p)
        assert p.threads_per_block == f.threads * (block[m] // register[m]) * (block[n] // register[n])
        assert p.threads_per_block <= spec.limits.threads_per_block
        accumulators = register[m] * register[n] * {"float16": 2, "float32": 4, "int32": 4}[f.accumulator]
        assert accumulators // 4 // f.threads + 24 < spec.limits.registers_per_thread
        padding = dict(p.storage_padding)
        sizes = {x: x.elements(padding.get(x.tensor.name, 0)) * x.tensor.itemsize_bytes for x in program_operands(p)}
        assert (
            c.estimate.terms["scratchpad_bytes"]
            == matrix_block_scratchpad_bytes(p, program_operands(p))
            >= p.stages * sum(sizes.values())
        )
        assert p.stages * sum(sizes.values()) <= spec.layer("shared").usable_bytes
        assert "execution_unit" not in p.relaxed
        parted = f.reads_scratchpad or all(_parted(p, x, padding.get(x.tensor.name, 0)) for x in sizes)
        assert ("bank" in p.relaxed) == (not parted)  # what reads the scratchpad by itself swizzles


def _parted(program: RProgram, operand: object, padding: int) -> bool:
    """Whether the eight 16-byte rows of every phase lie in different banks."""
    return all(
        len({a // 16 % 8 for a in rows}) == 8 for rows in phase_row_addresses(operand, program.fragment, padding)
    )


@pytest.mark.parametrize("name", ["matmul", "transposed", "batched", "conv2d 1x1"])
def test_operands_of_whole_rows_have_no_bank_conflicts(name):
    assert all("bank" not in c.program.relaxed for c in _some(MADE[name][0]))


def test_rings_of_several_stages_need_asynchronous_copies():
    """Rows of 51 halves start at odd places: elements pass through registers, one step ahead at most."""
    for expr, spec in (
        (ops.matmul(512, 51, 51, **F16), A100),
        (ops.matmul(512, 512, 512, **F16), replace(A100, execution=replace(A100.execution, async_copy_bytes=None))),
    ):
        batches = matrix_candidates((Geometry.of(expr),), spec, ConstructOptions())
        assert batches and max(np.max(b.stages) for b in batches) <= max(REGISTER_STAGES)
    batches = matrix_candidates((Geometry.of(ops.matmul(512, 512, 512, **F16)),), A100, ConstructOptions())
    assert max(np.max(b.stages) for b in batches) > max(REGISTER_STAGES)


def test_few_blocks_split_the_reduction():
    expr = ops.matmul(64, 64, 16384, **F16)
    assert _programs(expr, top_k=1)[0].program.split_k > 1
    assert all(c.program.split_k == 1 for c in _some(expr, options=ConstructOptions(split_k=False)))


def test_the_matrix_unit_wins_by_its_price():
    found = roller.construct(ops.matmul(4096, 4096, 1024, **F16), device="a100")
    assert found[0].program.structure == "matrix"
    slow = A100.with_overrides({"compute.ops_per_cycle_per_unit.matrix.float16": 8.0})
    assert roller.construct(ops.matmul(4096, 4096, 1024, **F16), device=slow)[0].program.structure == "tiled"


@pytest.mark.parametrize("name", MADE)
def test_the_interpreter_finds_the_footprint_and_traffic_of_the_model(name):
    factory = {
        "matmul": lambda: ops.matmul(33, 20, 40, **F16),
        "transposed": lambda: ops.matmul(33, 20, 40, transpose_a=True, transpose_b=True, **F16),
        "batched": lambda: ops.matmul(17, 9, 20, batch=2, dtype="bfloat16"),
        "half sums": lambda: ops.matmul(33, 20, 40, acc_dtype="float16", **F16),
        "bytes": lambda: ops.matmul(33, 20, 40, dtype="int8"),
        "epilogue": lambda: ops.matmul(33, 20, 40, epilogue=("bias", "relu"), **F16),
        "conv2d": lambda: ops.conv2d(2, 5, 7, 7, 9, 3, 3, padding=1, **F16),
        "conv2d 1x1": lambda: ops.conv2d(2, 5, 7, 7, 9, 1, 1, **F16),
        "conv2d NHWC": lambda: ops.conv2d(2, 5, 7, 7, 9, 3, 3, stride=2, layout="NHWC", **F16),
    }
    expr = factory[name]()
    arrays = arrays_for(expr)
    want = expr.evaluate(arrays)
    for c in _some(expr)[:3]:
        assert_interprets(c.program, arrays, want)


@pytest.mark.parametrize("name", MADE)
def test_programs_survive_json(name):
    for c in _some(MADE[name][0])[:2]:
        assert RProgram.from_dict(c.program.to_dict()) == c.program


def test_groups_per_axis_share_a_block_evenly():
    batches = matrix_candidates((Geometry.of(MADE["matmul"][0]),), A100, ConstructOptions())
    assert batches and all(len(b) >= 2 for b in batches)
    for batch in batches:
        assert not (batch.block % batch.register).any()
        assert np.array_equal(batch.threads.prod(axis=1) * 32, batch.threads_per_block)


def test_the_mechanism_and_its_pipelines_can_be_switched_off():
    expr = MADE["matmul"][0]
    assert not _programs(expr, options=ConstructOptions(matrix_units=False))
    plain = _programs(expr, options=ConstructOptions(pipelining=False))
    assert plain and {(c.program.stages, c.program.raster) for c in plain} == {(1, 1)}


def test_the_instructions_of_a_matrix_program():
    """Padded blocks of two warps, stepped over k: the stream is that of tiles, whoever multiplies them."""
    fragment = next(f for f in A100.fragments if f.name == "mma.m16n8k16.f16.f32")
    expr = ops.matmul(40, 12, 20, epilogue=("bias",), **F16)
    tiles = (("register", (16, 8, 16)), ("shared", (32, 16, 16)))
    made = RProgram(expr, "gpu", "matrix", tiles, staged=("A", "B"), fragment=fragment, matrix_axes=("i", "j", "k"))
    assert_golden("instructions_matmul_matrix.txt", "\n".join([str(made), *map(str, instructions(made))]))


def test_the_name_of_a_fragment_decides_nothing():
    """Fragments are named so that their order by name is turned round."""
    spec = roller.load_spec("h200")
    last = len(spec.fragments)
    renamed = tuple(replace(f, name=f"{f.family}.{last - n:02}") for n, f in enumerate(spec.fragments))
    other = replace(spec, fragments=renamed[::-1])
    for sizes in ((4096, 64, 1024), (2048, 320, 640), (512, 2048, 512)):
        geometry = Geometry.of(ops.matmul(*sizes, **F16))
        kept = [
            [replace(b.fragment, name="") for b in matrix_candidates((geometry,), device, ConstructOptions())]
            for device in (spec, other)
        ]
        assert kept[0] == kept[1] and len({f.n for f in kept[0]}) > 1


@pytest.mark.parametrize("device", ["v100", "a100", "h100"])
@pytest.mark.parametrize("shape", [(1, 4096, 512), (4096, 1, 512)], ids=["row", "column"])
@pytest.mark.parametrize("batch", [None, 8])
def test_a_product_of_one_row_is_one_launch_of_the_matrix_unit(shape, device, batch):
    """The axis of one element is left out by other forms; a fragment overhangs it, and nothing has to be split."""
    expr = ops.matmul(*shape, batch=batch, dtype="float16")
    best = roller.construct(expr, device, top_k=1)[0]
    assert best.program.fragment is not None and best.program.split_k == 1
    assert roller.predict(expr, device, str(best.program)) == best.estimate
