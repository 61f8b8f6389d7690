"""Axes and tensors are told apart by what they are: quotients and remainders of one axis, names a person chose."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import te, tirx

import roller
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.emulator import prove
from roller.expr import REDUCTION, Axis, Call, Index, Load, Stage, Tensor, TensorExpr, Term, axis_index
from roller.expr.canonical import fuse_axes
from roller.runtime.check import check
from roller.te.reader import read
from roller.templates.gpu.emit.axis_map import AxisMap, register_index_of_point, register_tile_loops
from roller.templates.gpu.emit.cuda import lower
from roller.templates.gpu.emit.tir_statements import declare_buffer, int32_literal, store
from roller.tile.vector_access_widths import is_vectorizable


def expand(shape, factors, dtype="float32"):
    """Every element ``factors`` times along each dimension."""
    x = te.placeholder(shape, name="X", dtype=dtype)
    sizes = tuple(n * f for n, f in zip(shape, factors, strict=True))

    def source(*place):
        return x(*(a // f if f > 1 else a for a, f in zip(place, factors, strict=True)))

    return [x, te.compute(sizes, source, name="Y")]


def wrapped(length, period, outputs=24):
    """A sum whose one operand starts again every ``period`` elements, and a sum of the sums."""
    z, x = te.placeholder((period,), name="Z"), te.placeholder((outputs + length,), name="X")
    r, q = te.reduce_axis((0, length), name="r"), te.reduce_axis((0, outputs), name="q")
    s = te.compute((outputs,), lambda a: te.sum(z[r % period] * x[a + r], axis=r), name="S")
    return [z, x, te.compute((1,), lambda o: te.sum(s[q], axis=q), name="T")]


def in_rows(rows, length, step):
    """Sums of rows that are read ``step`` times each element, or from several rows at once."""
    z, r = te.placeholder((rows, -(-length // step)), name="Z"), te.reduce_axis((0, length), name="r")
    return [z, te.compute((rows,), lambda a: te.sum(z[a, r // step], axis=r), name="S")]


def two_inputs(plain, guarded, rows=False):
    """Two inputs of these names, one read under a guard."""
    x, v = te.placeholder((8, 64), name=plain), te.placeholder((64,), name=guarded)

    def shifted(j):
        return tirx.if_then_else(j >= 4, v[j - 4], tirx.const(0.0, "float32"))

    if not rows:
        return [x, v, te.compute((8, 64), lambda i, j: x[i, j] + shifted(j), name="Y")]
    r = te.reduce_axis((0, 64), name="r")
    m = te.compute((8,), lambda i: te.sum(x[i, r], axis=r), name="M")
    return [x, v, te.compute((8, 64), lambda i, j: x[i, j] - m[i] + shifted(j), name="Y")]


def sums(name, by=1):
    """Sums over an axis of this name beside axes i and j."""
    x, r = te.placeholder((4, 6, 24), name="X"), te.reduce_axis((0, 24), name=name)
    return [x, te.compute((4, 6 * by), lambda i, j: te.sum(x[i, j // by if by > 1 else j, r], axis=r), name="Y")]


def proved(expr, program, spec, built):
    lowered = pipeline.lower if spec.target["language"] == "cuda" else lambda p, e, s: lower(p, e, "sm_70", s.name)
    artifact = lowered(program, expr, spec)
    return prove(artifact, compare=lambda *a: check(*a).message, cache_dir=built, orders=("forward", "random"))


CASES = {
    "upsampled by 3": expand((2, 3, 7, 5), (1, 1, 3, 3)),
    "channels repeated": expand((4, 6, 10), (2, 1, 3), "float16"),
    "grouped products": ops.conv2d(1, 34, 5, 5, 4, 3, 3, padding=1, groups=2, dtype="int8"),
    "a remainder that wraps in a vector": wrapped(32, 6),
    "a remainder as long as the row": wrapped(20, 10, 40),
    "a quotient that steps in a vector": in_rows(5, 64, 6),
}


DEVICES = ["v100", "h200", "mi50", "k80", "a100", "mi300x"]
#: Every case once in the quick tests, devices taking turns.
TURNS = [(name, DEVICES[n % 3]) for n, name in enumerate(CASES)]
REST = [(name, device) for name in CASES for device in DEVICES if (name, device) not in TURNS]


@pytest.mark.parametrize("name, device", [*TURNS, *(pytest.param(*x, marks=pytest.mark.slow) for x in REST)])
def test_the_best_program_of_quotients_and_remainders_is_right(built, name, device):
    expr, spec = read(CASES[name]) if isinstance(CASES[name], list) else CASES[name], roller.load_spec(device).emitted
    best = roller.construct(expr, spec, top_k=1)[0].program
    proof = proved(expr, best, spec, built)
    assert proof.ok, f"{best}: {proof}"


@pytest.mark.slow
@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("device", ["v100", "a100", "h200"])
@pytest.mark.parametrize("name", CASES)
def test_the_compiler_of_the_device_takes_them(name, device):
    expr, spec = read(CASES[name]) if isinstance(CASES[name], list) else CASES[name], roller.load_spec(device).emitted
    for found in roller.construct(expr, spec, top_k=3):
        for launch in pipeline.lower(found.program, expr, spec).launches:
            assert launch.entry in toolchain.compile_to_ptx(launch.source, spec.target["arch"])


NAMED = {
    "a tensor named like registers of a stream": two_inputs("X", "vec0"),
    "a tensor named like registers of rows": two_inputs("X", "kept0", rows=True),
    "a tensor named like a value of a row": two_inputs("once0", "again0", rows=True),
    "an axis named like two that fuse": sums("i*j"),
    "an axis named like a quotient": sums("j/2", 2),
    "an axis named like the parts of a split sum": sums("part"),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_a_person_chose_meet_no_name_of_the_compiler(built, name):
    expr, spec = read(NAMED[name]), roller.load_spec("v100")
    best = roller.construct(expr, spec, top_k=1)[0].program
    assert len(set(best.axis_names)) == len(best.axis_names)
    proof = proved(expr, best, spec, built)
    assert proof.ok, f"{best}: {proof}"


@pytest.mark.parametrize("names", [("i", "j", "j.inner"), ("i", "j", "i.task"), ("@part", "j", "k.block")])
def test_axes_named_like_coordinates_within_a_tile_stay_apart_on_a_processor(names):
    i, j, k = (axis_index(n) for n in names)
    axes = (Axis(names[0], 40), Axis(names[1], 48), Axis(names[2], 64, REDUCTION))
    product = Call("mul", (Load("A", (i, k)), Load("B", (k, j))))
    total = Stage(Tensor("C", (40, 48)), axes, (i, j), product, "sum")
    expr = TensorExpr("product", (Tensor("A", (40, 64)), Tensor("B", (64, 48))), (total,), ("C",))
    kernel = roller.compile(expr, top_k=1, deterministic=True, cache=False)
    a, b = (np.random.default_rng(n).standard_normal(t.shape).astype(np.float32) for n, t in enumerate(expr.inputs))
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)


def test_an_axis_that_a_person_named_like_a_fused_one_stays_apart():
    fused = fuse_axes(read(sums("i*j")))
    assert [a.name for a in fused.axes] == ["i*j'", "i*j"]
    assert [a.extent for a in fused.axes] == [24, 24]


def test_registers_of_axes_whose_names_differ_in_signs_alone_are_all_reached():
    maps = [AxisMap("j/3", 8, 1, 4, 2), AxisMap("j%3", 3, 1, 3), AxisMap("j*3", 4, 1, 2, 2)]
    held, found = declare_buffer("held", (24,), "int32", "local"), []

    def point(at):
        found.extend(at.chunk.values())
        return store(held, int32_literal(1), register_index_of_point(maps, at))

    register_tile_loops(maps, point)
    variables = [v for v in found if type(v).__name__ == "Var"]
    assert len(variables) == 2 and not variables[0].same_as(variables[1])  # the third axis has a single chunk


def test_a_vector_is_one_only_where_no_term_steps_or_wraps_within_it():
    def read_by(div, mod, elements=64):
        return is_vectorizable((Index((Term("r", 1, div, mod),)),), Tensor("Z", (elements,)), "r", 60, 4)

    assert read_by(1, 0) and read_by(1, 12) and not read_by(1, 6) and not read_by(2, 0) and not read_by(1, 10)
    assert is_vectorizable((Index((Term("r", 1, 1, 6),)),), Tensor("Z", (6,)), "r", 60, 2)
