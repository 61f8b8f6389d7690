"""Floats of 16 bits on CPUs: packed operands are converted once, sums are in float32, every number comes through."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from roller import ConstructOptions, construct, ops
from roller.construction.check_user_named_programs import check_program
from roller.errors import TileError
from roller.hardware import load_spec
from roller.templates.cpu.decisions import BOX, PANEL
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions
from roller.templates.cpu.emit.lower_cpu_program import lower
from roller.tile.winograd import window_product
from roller_runtime.core.dtypes import (
    as_numpy_bits,
    decode_stored_values,
    encode_stored_values,
    numpy_dtype,
    storage_dtype,
)
from tests.codegen.cpu_programs import canonical, host_mcpu, program
from tests.codegen.test_cpu_constants import assert_right, loaded, lowered

HALVES = ["float16", "bfloat16"]


def numbers_of(e, prog, bits, *constants):
    """Return the result of a kernel called with halves given as they are stored, as float64; and its artifact."""
    artifact = lowered(e, prog, *constants)
    made, free = loaded(artifact, [b.view(numpy_dtype(t.dtype)) for b, t in zip(bits, e.inputs, strict=True)])
    with np.errstate(invalid="ignore"):  # signalling NaN
        return decode_stored_values(as_numpy_bits(made(*free)), e.inputs[0].dtype).astype(np.float64), artifact


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("staged", [(), ("A",), ("B",), ("A", "B")])
@pytest.mark.parametrize("shape", [(7, 37, 19), (13, 64, 48)])
def test_products_of_what_is_packed_and_what_is_not(dtype, staged, shape):
    e = ops.matmul(*shape, dtype=dtype, epilogue=("bias", "relu"))
    p = program(canonical(e), "tiled", {"i": 3, "j": 16}, {"i": 6, "j": 32}, "j", staged=staged)
    assert_right(e, p)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("transposed", [False, True])
def test_panels_of_constants_hold_float32(dtype, transposed):
    e = ops.matmul(6, 40, 37, transpose_b=transposed, dtype=dtype)
    p = program(canonical(e), "tiled", {"i": 3, "j": 16}, {}, "j", staged=("A", "B"))
    random = np.random.default_rng(0)
    bits = [encode_stored_values(random.standard_normal(t.shape), dtype) for t in e.inputs]
    got, artifact = numbers_of(e, p, bits, "B")
    assert [a.dtype for a in artifact.arguments if a.role == "panel"] == ["float32"]
    a, b = (decode_stored_values(x, dtype).astype(np.float64) for x in bits)
    b = b.T if transposed else b
    half_a_digit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    bound = half_a_digit * np.abs(a @ b) + 40 * 2.0**-23 * (np.abs(a) @ np.abs(b))  # the result's, and of float32 sums
    assert (np.abs(got - a @ b) <= bound).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("staged", [(), ("A",)])
@pytest.mark.parametrize("vector", ["i", "j"])
def test_every_number_goes_through_a_product_with_one(dtype, staged, vector):
    """Subnormal numbers, infinities and NaN too."""
    e = ops.matmul(1 << 16, 16, 2, dtype=dtype)
    p = program(canonical(e), "tiled", {vector: 16}, {"i": 4096, "j": 16}, vector,
                staged=(*staged, *(("A",) if vector == "i" else ())))  # fmt: skip
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(storage_dtype(dtype))
    got, _ = numbers_of(
        e, p, [np.stack([every, np.zeros_like(every)], axis=1), encode_stored_values(np.ones((2, 16)), dtype)]
    )
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = np.broadcast_to(decode_stored_values(every, dtype).astype(np.float64)[:, None], got.shape)
    np.testing.assert_array_equal(got, expected)  # where both are NaN, they are equal


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("rows", "kept"), [(1, True), (8, True), (9, False)])
def test_panels_of_large_constants_that_are_used_a_few_times_hold_halves(dtype, transposed, rows, kept):
    e = ops.matmul(rows, 130, 257, transpose_b=transposed, dtype=dtype, epilogue=("bias",))
    p = program(canonical(e), "tiled", {"i": min(rows, 4), "j": 32}, {"j": 64}, "j", staged=("A", "B"))
    artifact = assert_right(e, p, "B")
    (panel,) = (a for a in artifact.arguments if a.role == "panel")
    assert panel.dtype == (str(storage_dtype(dtype)) if kept else "float32")
    little = ops.matmul(rows, 130, 33, transpose_b=transposed, dtype=dtype, epilogue=("bias",))
    p = program(canonical(little), "tiled", {"i": min(rows, 4), "j": 32}, {"j": 64}, "j", staged=("A", "B"))
    artifact = assert_right(little, p, "B")
    assert [a.dtype for a in artifact.arguments if a.role == "panel"] == ["float32"]


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_goes_through_a_panel_of_halves(dtype):
    e = ops.matmul(1, 1 << 16, 2, dtype=dtype)
    p = program(canonical(e), "tiled", {"j": 64}, {"j": 4096}, "j", staged=("A", "B"))
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(storage_dtype(dtype))
    got, _ = numbers_of(
        e, p, [encode_stored_values(np.ones((1, 2)), dtype), np.stack([every, np.zeros_like(every)])], "B"
    )
    with np.errstate(invalid="ignore"):  # signalling NaN
        expected = decode_stored_values(every, dtype).astype(np.float64)
    np.testing.assert_array_equal(got.reshape(-1), expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_rows_of_a_batch_are_converted_in_boxes(dtype):
    e = ops.matmul(21, 34, 50, batch=3, dtype=dtype)
    p = program(canonical(e), "tiled", {"i": 4, "j": 16}, {"b": 2, "i": 12, "j": 32}, "j", staged=("A", "B"))
    assert_right(e, p)
    decisions = program_decisions(p)
    assert [decisions.staging(a) for a in decisions.batch.geometry.loads] == [BOX, PANEL]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("stride", [1, 2])
def test_boxes_and_gathered_panels(dtype, stride):
    e = ops.conv2d(2, 5, 11, 13, 24, 3, 3, padding=1, stride=stride, dtype=dtype, epilogue=("bias", "relu"))
    for vector, register in (("wo", {"f": 4, "wo": 16}), ("f", {"f": 16, "wo": 3})):
        p = program(canonical(e), "tiled", register, {"f": 32, "ho": 3, "wo": 32}, vector, staged=("X", "W"))
        assert_right(e, p)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_are_kept_in_float32(dtype):
    """4096 ones: sums in a half would stop at 2048, or at 256."""
    e = ops.matmul(4, 16, 4096, dtype=dtype)
    p = program(canonical(e), "tiled", {"i": 2, "j": 16}, {}, "j", staged=("A", "B"))
    got, _ = numbers_of(e, p, [encode_stored_values(np.ones(t.shape), dtype) for t in e.inputs])
    assert (got == 4096).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("m", "layout"), [(2, "NCHW"), (4, "NHWC"), (4, "NCHW")])
@pytest.mark.parametrize("epilogue", [(), ("bias", "relu")])
def test_winograds_products_of_halves(dtype, m, layout, epilogue):
    e = ops.conv2d(2, 17, 9, 7, 33, 3, 3, padding=1, layout=layout, dtype=dtype, epilogue=epilogue)
    assert window_product(e).converted
    p = program(canonical(e), f"winograd{m}", {"ho": m, "wo": m, "f": 16}, {"ho": 2 * m, "wo": 2 * m, "f": 32}, "f",
                staged=("W",))  # fmt: skip
    assert_right(e, p)
    assert_right(e, p, "W")


def test_winograds_algorithm_is_offered_where_it_pays():
    e = ops.conv2d(1, 128, 28, 28, 128, 3, 3, padding=1, dtype="float16")
    best = construct(e, load_spec("cpu-avx512"), options=ConstructOptions(top_k=1, constants=("W",)))[0]
    assert best.program.structure.startswith("winograd")


def test_gpus_are_offered_no_winograd_program_of_halves():
    e, spec = ops.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1, dtype="float16"), load_spec("v100")
    found = construct(e, spec, options=ConstructOptions(top_k=64))
    assert not [c for c in found if c.program.structure.startswith("winograd")]
    single = construct(ops.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1), spec, options=ConstructOptions(top_k=64))
    program_ = next(c.program for c in single if c.program.structure.startswith("winograd"))
    with pytest.raises(TileError, match="winograd"):
        check_program(replace(program_, expr=canonical(e)), spec)


@pytest.mark.parametrize("device", ["cpu-avx2", "cpu-avx512", "cpu-neon"])
def test_a_broadcast_operand_of_halves_is_packed_where_it_is_read_often(device):
    best = construct(
        ops.matmul(128, 768, 768, dtype="float16"), load_spec(device),
        options=ConstructOptions(top_k=1, constants=("B",)),
    )[0]  # fmt: skip
    assert set(best.program.staged) == {"A", "B"}


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs a disassembler")
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "sapphirerapids"])
def test_no_arithmetic_of_halves(mcpu, tmp_path):
    """Whatever a processor can: what rounds each sum to a half is not used."""
    if host_mcpu().startswith(("apple", "neoverse", "cortex", "generic")):
        pytest.skip("another instruction set")
    e = ops.matmul(64, 64, 64, dtype="float16", epilogue=("bias", "relu"))
    p = program(canonical(e), "tiled", {"i": 4, "j": 16}, {}, "j", staged=("B",))
    library = tmp_path / "kernel.so"
    library.write_bytes(lower(p, e, mcpu, 1, "test", 64).binary)
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True).stdout
    code = [line.split("\t")[-1].split()[0] for line in text.splitlines() if "\t" in line]
    assert any(c.startswith("vfmadd") and c.endswith("ps") for c in code)
    assert not [c for c in code if re.fullmatch(r"v(f?n?m(add|sub)\w*|add|sub|mul|max|min)(ph|sh)", c)]
