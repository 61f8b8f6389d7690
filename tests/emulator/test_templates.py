"""Every template, dtype and kind of shape: the emitted kernels, in three thread orders, against the reference."""

import itertools

import numpy as np
import pytest

pytest.importorskip("tvm")

import roller
from roller import ops
from roller.compiler import pipeline
from roller.emulator import EmulatedArtifact, prove
from roller.emulator.emulate import round_to_dtype
from roller.expr.canonical import fuse_axes
from roller.hardware import load_spec
from roller.runtime.check import Oracle
from roller.tile import RProgram
from tests.cases import ODD_CASES, arrays_for

#: Template, expression of (shape, dtype), and its divisible, odd, tiny and prime shape.
OPERATORS = {
    "matmul": ("tiled", lambda s, d: ops.matmul(*s, dtype=d), [(128, 64, 32), (65, 33, 15), (2, 3, 2), (97, 61, 53)]),
    "conv2d": ("tiled", lambda s, d: ops.conv2d(*s, padding=1, dtype=d),
               [(1, 16, 16, 16, 32, 3, 3), (1, 5, 9, 7, 6, 3, 3), (1, 2, 2, 2, 2, 2, 2), (1, 7, 13, 11, 17, 3, 3)]),
    "softmax": ("rows", lambda s, d: ops.softmax(s, dtype=d), [(32, 128), (9, 65), (2, 3), (13, 101)]),
    "layer_norm": ("rows", lambda s, d: ops.layer_norm(s, eps=1e-5, dtype=d), [(32, 128), (9, 65), (2, 3), (13, 101)]),
    "reduce": ("rows", lambda s, d: ops.reduce("sum", s, axes=(1,), dtype=d), [(32, 128), (9, 65), (2, 3), (13, 101)]),
    "max": ("rows", lambda s, d: ops.reduce("max", s, axes=(0,), dtype=d), [(32, 128), (9, 65), (2, 3), (13, 101)]),
    "add": ("streaming", lambda s, d: ops.elementwise(("add", "relu"), s, dtype=d),
            [(64, 128), (15, 33), (1, 3), (10007,)]),
}  # fmt: skip
SHAPES = ("divisible", "odd", "tiny", "prime")


def random_arrays(expression, seed=3):
    rng = np.random.default_rng(seed)
    out = []
    for t in expression.inputs:
        if "int" in t.dtype:
            out.append(rng.integers(-8, 8, t.shape).astype(t.dtype))
        else:
            x = rng.standard_normal(t.shape).astype("float64" if t.dtype == "float64" else "float32")
            out.append(round_to_dtype(x, t.dtype) if t.dtype == "bfloat16" else x.astype(t.dtype))
    return out


def proven(expression, arrays, built, device="v100", top_k=1, **options):
    """Prove the best ``top_k`` programs of an expression and return them."""
    oracle = Oracle(expression, arrays)
    spec = load_spec(device)
    programs = []
    for candidate in roller.construct(expression, device, top_k, roller.ConstructOptions(**options)):
        made = pipeline.lower(candidate.program, expression, spec)
        proof = prove(made, arrays, compare=lambda e, x, y: oracle.check(list(y)).message, cache_dir=built)
        assert proof.ok, f"{expression.name} {candidate.program.tiles}: {proof}"
        programs.append(candidate.program)
    assert programs
    return programs


@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(OPERATORS, ("float32", "float16"))))
def test_templates_by_dtype_and_shape(built, name, dtype):
    template, expression, shapes = OPERATORS[name]
    for shape, kind in zip(shapes, SHAPES, strict=True):
        e = expression(shape, dtype)
        (program,) = proven(e, random_arrays(e), built, matrix_units=False)
        assert program.structure == template, kind


@pytest.mark.parametrize("name", ["matmul", "max", "add"])
def test_integer_templates(built, name):
    template, expression, shapes = OPERATORS[name]
    for shape in shapes:
        e = expression(shape, "int8")
        (program,) = proven(e, random_arrays(e), built)
        assert program.structure == template


def test_a_split_reduction_and_its_second_launch(built):
    e = ops.matmul(33, 35, 300)
    made = [pipeline.lower(c.program, e, load_spec("v100")) for c in roller.construct(e, device="v100", top_k=4)]
    split = [a for a in made if len(a.launches) == 2]
    assert split, "no candidate splits the reduction"
    proof = prove(split[0], cache_dir=built)
    assert proof.ok, str(proof)


#: Register and block tile of i, j, k, and the options of a program that the constructor chooses only on large shapes.
PROGRAMS = {
    "vectors and padding": ((8, 4, 1), (128, 64, 32), {"vector_axis": "j", "vector_elements": 4,
                                                      "storage_padding": (("A", 4),)}),
    "interleaved": ((4, 4, 1), (64, 64, 16), {"vector_axis": "j", "vector_elements": 2, "interleaved": True}),
    "padding that forbids vectors": ((4, 2, 1), (32, 32, 32), {"storage_padding": (("A", 1), ("B", 1))}),
    "dynamic scratchpad": ((8, 8, 1), (128, 128, 64), {"vector_axis": "j", "vector_elements": 4}),
    "nothing staged": ((2, 2, 1), (16, 32, 8), {"staged": ()}),
    "three parts": ((4, 4, 1), (32, 32, 8), {"split_k": 3}),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(128, 128, 64), (127, 61, 67)], ids=["divisible", "prime"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_the_constructor_chooses_on_large_shapes(built, name, shape):
    from roller.templates.gpu.emit.cuda import lower

    register, block, options = PROGRAMS[name]
    e = ops.matmul(*shape)
    program = RProgram(
        fuse_axes(e), "gpu", "tiled", (("register", register), ("shared", block)), **{"staged": ("A", "B"), **options}
    )
    made = lower(program, e, "sm_70", "test")
    assert (made.launches[0].dynamic_shared_bytes > 0) == (name == "dynamic scratchpad")
    proof = prove(made, cache_dir=built)
    assert proof.ok, str(proof)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_templates_of_a_device_with_bfloat16(built, name, dtype):
    _, expression, shapes = OPERATORS[name]
    for shape in shapes:
        e = expression(shape, dtype)
        proven(e, random_arrays(e), built, device="a100", top_k=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_templates_in_double_precision(built, name):
    _, expression, shapes = OPERATORS[name]
    for shape in shapes:
        e = expression(shape, "float64")
        proven(e, random_arrays(e), built, top_k=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "factory"), ODD_CASES, ids=[n for n, _ in ODD_CASES])
def test_odd_expressions(built, name, factory):
    e = factory()
    proven(e, arrays_for(e, factory), built, top_k=2)


@pytest.mark.slow
def test_a_large_matmul_is_right(built):
    e = ops.matmul(512, 512, 512)
    arrays = random_arrays(e)
    (candidate,) = roller.construct(e, device="v100", top_k=1)
    emulated = EmulatedArtifact(pipeline.lower(candidate.program, e, load_spec("v100")), cache_dir=built)
    (got,) = emulated(arrays)
    assert Oracle(e, arrays).check([got]).ok
