"""Products of bytes by dot products of the processor: exact for both signs, every tail, windows, batches, epilogues."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import roller
from roller import ops
from roller.expr.evaluate import evaluate
from roller.hardware.detect_cpu_spec import CpuInfo, detect_cpu_without_probe, match_cpu_profile
from roller.runtime.random_inputs import random_inputs
from roller.templates.cpu.matrix.byte_products import byte_product_axes, factors_of_byte_product, supported_fragments
from roller.tile.geometry import Geometry

HERE = detect_cpu_without_probe()
runs = pytest.mark.skipif(not supported_fragments(HERE), reason="this processor has no dot products of bytes")
#: A processor with the instruction, wherever the tests run.
DEVICE = replace(
    roller.load_spec("cpu-avx512"),
    target_items=(("features", "amx-int8 avx512vnni"), ("language", "llvm"), ("mcpu", "x86-64-v4")),
)
SIGNS = [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")]


def of_bytes(expr, a, b):
    kinds = dict(zip((t.name for t in expr.inputs), (a, b), strict=False))
    return replace(expr, inputs=tuple(replace(t, dtype=kinds.get(t.name, t.dtype)) for t in expr.inputs))


def matrix_programs(expr, spec, constants=(), count=3):
    """Return a few programs of every instruction, the best and others that differ most from it."""
    options = roller.ConstructOptions(constants=tuple(constants), top_k=2000)
    out = []
    for f in supported_fragments(spec):
        found = [c.program for c in roller.construct(expr, spec, options=options) if c.program.fragment == f]
        out += [found[n] for n in sorted({len(found) * x // count for x in range(count)})] if found else []
    return out


def extreme(expr, seed=0):
    """Return inputs of which a third are the least and a third the largest of their type."""
    rng, out = np.random.default_rng(seed), []
    for t in expr.inputs:
        if t.dtype not in ("int8", "uint8"):
            out.append(random_inputs(expr, seed)[len(out)])
            continue
        info = np.iinfo(t.dtype)
        values = rng.integers(info.min, info.max + 1, t.shape)
        which = rng.integers(0, 3, t.shape)
        out.append(np.where(which == 0, info.min, np.where(which == 1, info.max, values)).astype(t.dtype))
    return out


def assert_exact(expr, cores=2, seed=0, count=3):
    """Hold the results of a few programs against float64, which is exact here, and no access may leave an array."""
    from roller.backends.cpu import CpuKernel
    from roller.runtime.guard_pages import find_out_of_bounds_access
    from roller.templates.cpu.emit.lower_cpu_program import lower

    arrays = extreme(expr, seed)
    programs = matrix_programs(expr, HERE, count=count)
    assert programs
    (expected,) = evaluate(expr, arrays)
    for p in programs:
        kernel = CpuKernel(lower(p, expr, HERE.target["mcpu"], cores, "test", 64))
        assert np.array_equal(kernel(*arrays), expected), p
        assert find_out_of_bounds_access(kernel) is None, p


@runs
@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
@pytest.mark.parametrize("shape", [(7, 37, 29), (1, 16, 4), (2, 33, 3)])
def test_products_of_every_sign_and_tail(shape, signs):
    m, n, k = shape
    expr = of_bytes(ops.matmul(m, n, k, dtype="int8"), *signs)
    a, b = extreme(expr)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(evaluate(expr, [a, b])[0], exact)
    assert_exact(expr, count=1)


@runs
@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
def test_the_sum_of_most_products_of_the_largest(signs):
    expr = of_bytes(ops.matmul(4, 32, 1024, dtype="int8"), *signs)
    from roller.backends.cpu import CpuKernel
    from roller.templates.cpu.emit.lower_cpu_program import lower

    kernels = [
        CpuKernel(lower(p, expr, HERE.target["mcpu"], 2, "test", 64)) for p in matrix_programs(expr, HERE, count=1)
    ]
    for kernel, a, b in itertools.product(kernels, (0, 1), (0, 1)):
        ends = [(np.iinfo(t.dtype).min, np.iinfo(t.dtype).max)[e] for t, e in zip(expr.inputs, (a, b), strict=True)]
        arrays = [np.full(t.shape, e, t.dtype) for t, e in zip(expr.inputs, ends, strict=True)]
        assert np.all(kernel(*arrays) == 1024 * int(ends[0]) * int(ends[1]))


@runs
@pytest.mark.parametrize("layout", [{"transpose_b": True}, {"transpose_a": True}, {"batch": 3}])
@pytest.mark.parametrize("signs", SIGNS[::3], ids=" ".join)
def test_layouts_of_operands(layout, signs):
    assert_exact(of_bytes(ops.matmul(9, 35, 22, dtype="int8", **layout), *signs), count=1)
    assert_exact(of_bytes(ops.matmul(9, 48, 64, dtype="int8", **layout), *signs), cores=1, count=1)


CONVOLUTIONS = {
    "padded blocks": {"c": 32, "h": 7, "w": 9, "f": 32, "kh": 3, "kw": 3, "padding": 1, "layout": "NCHW16c"},
    "strided blocks": {"c": 20, "h": 9, "w": 8, "f": 33, "kh": 3, "kw": 3, "stride": 2, "layout": "NCHW16c"},
    "1x1 blocks": {"c": 32, "h": 5, "w": 7, "f": 48, "kh": 1, "kw": 1, "layout": "NCHW16c"},
    "small blocks": {"c": 12, "h": 6, "w": 17, "f": 24, "kh": 3, "kw": 2, "padding": 1, "layout": "NCHW8c"},
    "plain": {"c": 6, "h": 11, "w": 13, "f": 19, "kh": 3, "kw": 3, "padding": 1},
    "plain 1x1": {"c": 9, "h": 6, "w": 7, "f": 20, "kh": 1, "kw": 1},
    "channels last": {"c": 8, "h": 9, "w": 6, "f": 21, "kh": 3, "kw": 3, "padding": 1, "layout": "NHWC"},
    "dilated": {"c": 16, "h": 12, "w": 12, "f": 16, "kh": 3, "kw": 3, "dilation": 2, "padding": 2, "layout": "NCHW16c"},
}


@runs
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    signs = SIGNS[list(CONVOLUTIONS).index(name) % len(SIGNS)]
    assert_exact(of_bytes(ops.conv2d(1, **CONVOLUTIONS[name], dtype="int8"), *signs), count=1)


@runs
@pytest.mark.slow
@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_by_many_programs(name, signs):
    assert_exact(of_bytes(ops.conv2d(1, **CONVOLUTIONS[name], dtype="int8"), *signs), count=2)


@runs
@pytest.mark.slow
@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
@pytest.mark.parametrize("shape", [(7, 37, 29), (5, 130, 64), (16, 64, 257), (31, 97, 1031)])
def test_products_by_many_programs(shape, signs):
    assert_exact(of_bytes(ops.matmul(*shape, dtype="int8"), *signs), count=3)


@runs
def test_what_pads_is_any_value():
    expr = of_bytes(ops.conv2d(1, 16, 6, 6, 16, 3, 3, padding=1, layout="NCHW16c", dtype="int8"), "uint8", "int8")
    r = roller.expr
    body = r.transform_scalar(
        expr.anchor.body, lambda n: replace(n, outside=131.0) if isinstance(n, r.Load) and n.guard else n
    )
    stages = tuple(replace(s, body=body) if s is expr.anchor else s for s in expr.stages)
    assert_exact(replace(expr, stages=stages), count=1)


@runs
def test_constants_are_packed_once_and_threads_share_the_work():
    expr = of_bytes(ops.matmul(19, 70, 45, dtype="int8"), "uint8", "int8")
    a, b = extreme(expr)
    for top_k in (1, 3):
        kernel = roller.compile(expr, "cpu", constants={"B": b}, top_k=top_k)
        assert np.array_equal(kernel(a), a.astype(np.int32) @ b.astype(np.int32))
        assert kernel.program.fragment is not None


@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
@pytest.mark.parametrize("profile", ["cpu-avx2", "cpu-avx512"])
def test_processors_without_dot_products_of_bytes_multiply_pairs_of_16_bits(profile, signs):
    """Their programs are built for any of them; those of this processor run in the other tests of this file."""
    from roller.templates.cpu.emit.lower_cpu_program import lower

    feature = {"cpu-avx2": "avx2", "cpu-avx512": "avx512bw"}[profile]
    spec = roller.load_spec(profile)
    items = tuple(sorted({**spec.target, "features": feature, "mcpu": "x86-64-v4"}.items()))
    spec = replace(spec, target_items=items)
    expr = of_bytes(ops.conv2d(1, 32, 7, 9, 32, 3, 3, padding=1, layout="NCHW16c", dtype="int8"), *signs)
    program = roller.construct(expr, spec, options=roller.ConstructOptions(constants=("W",)), top_k=1)[0].program
    assert program.fragment.family == "madd" and program.fragment.arch == feature
    artifact = lower(program, expr, "x86-64-v4", 2, "test", 4 * spec.teu.lanes)
    assert artifact.binary and feature in artifact.target["features"]
    assert "roller_add" in artifact.launches[0].source


def test_of_two_instructions_for_words_the_faster_one_is_taken():
    both = replace(DEVICE, target_items=(("features", "avx512bw avx512vnni"), *DEVICE.target_items[1:]))
    assert [f.family for f in supported_fragments(both)] == ["vnni"]
    slow = both.with_overrides({"compute.ops_per_cycle_per_unit.dot.int8": 1.0})
    assert [f.family for f in supported_fragments(slow)] == ["madd"]


def test_a_device_whose_target_lists_no_feature_has_programs_without_the_instruction():
    expr = ops.matmul(64, 64, 64, dtype="int8")
    generic = roller.load_spec("cpu-avx512")
    assert not matrix_programs(expr, generic) and roller.construct(expr, generic, top_k=1)
    assert {p.fragment.arch for p in matrix_programs(expr, DEVICE)} == {"avx512vnni", "amx-int8"}


def test_what_is_no_product_of_bytes_has_none():
    for expr in (ops.matmul(64, 64, 64), ops.matmul(64, 64, 64, dtype="int8", acc_dtype="float32")):
        assert not matrix_programs(expr, DEVICE)
    r, expr = roller.expr, ops.matmul(64, 64, 64, dtype="int8")
    moved = r.Call("mul", tuple(r.Call("sub", (f, r.Const(3, "int32"))) for f in expr.anchor.body.args))
    assert factors_of_byte_product(expr.anchor) and factors_of_byte_product(replace(expr.anchor, body=moved)) is None


def test_words_lie_where_the_other_operand_holds_them_in_one_piece():
    expr = ops.conv2d(1, 32, 14, 14, 32, 3, 3, padding=1, layout="NCHW16c", dtype="int8")
    ways = byte_product_axes(Geometry.of(roller.expr.canonical.fuse_axes(expr)), DEVICE, DEVICE.fragments[0])
    assert ("ho", "fi", "ci") in ways or ("wo", "fi", "ci") in ways


def test_detection_lists_the_feature_where_the_processor_has_it(tmp_path):
    from roller.hardware.detect_cpu_spec import _AVX2, _AVX512, detect_cpu

    def here(extra):
        (tmp_path / "proc").mkdir(exist_ok=True)
        flags = " ".join(sorted(_AVX512 | _AVX2 | extra))
        folder = tmp_path / ("with" if extra else "without")
        (folder / "proc").mkdir(parents=True, exist_ok=True)
        (folder / "proc/cpuinfo").write_text(f"vendor_id : X\nflags : {flags}\n")
        return detect_cpu(folder, "x86_64")

    both = here({"avx512_vnni"})
    assert both.target["features"] == "avx512bw avx512vnni"
    assert [f.family for f in supported_fragments(both)] == ["vnni"] and [
        f.family for f in supported_fragments(here(set()))
    ] == ["madd"]
    assert here(set()).target["features"] == "avx512bw"
    assert match_cpu_profile("x86_64", CpuInfo(flags=frozenset(_AVX512 | _AVX2)))[0] == "cpu-avx512"


@pytest.mark.parametrize("signs", SIGNS, ids=" ".join)
def test_kernels_say_which_feature_they_need(signs):
    from roller.templates.cpu.emit.lower_cpu_program import lower_module

    expr = of_bytes(ops.matmul(8, 32, 16, dtype="int8"), *signs)
    for p in matrix_programs(expr, DEVICE, count=1):
        module, _, _ = lower_module(p, 2)
        assert {"vnni": "vpdpbusd", "amx": "roller_tile_dot"}[p.fragment.family] in module["main"].script()
