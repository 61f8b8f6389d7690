"""Every GPU constructs and predicts, is found by what its driver says of it, and prices what its matrix unit takes."""

from __future__ import annotations

import re

import pytest

import roller
from benchmarks.common import operators
from roller import ops
from roller.backends.parse_device_names import DeviceProperties, find_matching_spec
from roller.compiler.pipeline import lower
from roller.errors import BuildError, NoCandidateError, RollerWarning
from roller.hardware import list_specs, load_spec
from roller.ops import from_spec
from tests.offenders import every

GPUS = [n for n in list_specs() if load_spec(n).kind == "gpu"]
FEW = {
    "matmul": ops.matmul(1024, 1024, 1024),
    "half": ops.matmul(1024, 1024, 1024, dtype="float16"),
    "softmax": ops.softmax((512, 1024)),
    "add": ops.elementwise("add", (1024, 1024)),
    "conv": ops.conv2d(8, 64, 28, 28, 64, 3, 3, padding=1),
}


def check(expr, spec):
    """No time is below what the device's own rates allow: those of all pipes together, and of memory."""
    best = roller.construct(expr, spec, top_k=1)[0]
    fastest = max(r for n, r in spec.compute.rates if n.split(".")[0] in ("fma", "matrix", "group_matrix"))
    winograd = 2.25 if best.program.structure.startswith("winograd") else 1.0
    least = expr.flops / winograd / (2 * fastest * spec.units * spec.clock_hz)
    assert best.estimate.seconds > max(least, expr.compulsory_bytes / spec.layer("global").peak_bytes_per_s / 1.001)
    assert 0 < best.estimate.clock_hz <= spec.clock_hz
    return best


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("operator", FEW)
def test_a_few_operators(name, operator):
    check(FEW[operator], load_spec(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", GPUS)
def test_all_operators(name):
    spec, refused = load_spec(name), []
    for row in operators():
        try:
            assert roller.construct(from_spec(row), spec, top_k=1)[0].estimate.seconds > 0
        except NoCandidateError:
            refused.append(row["id"])
    assert refused == []


@every("name", GPUS)
def test_a_device_is_found_by_its_architecture_units_and_memory(name):
    spec = load_spec(name)
    memory = int(spec.memory_layers[-1].capacity_bytes * 0.97)  # the driver keeps a little
    found = DeviceProperties("a GPU", spec.target["arch"], spec.units, memory, 0, (), ())
    assert find_matching_spec(found, map(load_spec, GPUS)).name == name


PRICED = {"mi100": ("float16", "bfloat16", "int8"), "mi210": ("float16", "bfloat16", "int8"),
          "mi250x": ("float16", "bfloat16", "int8"), "mi300x": ("float16", "int8", "float8_e4m3fn", "float8_e5m2"),
          **dict.fromkeys(("h100", "h200", "gh200", "h100-pcie", "l4", "rtx4090", "b200"),
                          ("float8_e4m3fn", "float8_e5m2"))}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, dtypes in PRICED.items() for d in dtypes])
def test_what_no_template_emits_is_priced_on_the_matrix_unit(name, dtype):
    spec, expr = load_spec(name), ops.matmul(2048, 2048, 2048, dtype=dtype, transpose_b=True)
    best = roller.construct(expr, spec, top_k=1)[0]
    assert best.program.fragment is not None and best.program.fragment.operand == dtype
    assert best.estimate.seconds < roller.construct(expr, spec.emitted, top_k=1)[0].estimate.seconds
    with pytest.raises(BuildError, match=rf"{re.escape(best.program.fragment.name)}: priced, not emitted"):
        lower(best.program, expr, spec)


@pytest.mark.parametrize(("name", "dtype"), [("mi300x", "float16"), ("h200", "float8_e4m3fn")])
def test_compile_says_so_and_does_without(name, dtype):
    expr = ops.matmul(256, 256, 256, dtype=dtype)
    with pytest.warns(RollerWarning, match=rf"on {name}: \S+ and its like are priced, no template emits them yet"):
        kernel = roller.compile(expr, name, top_k=1, cache=False)
    assert kernel.artifact.program.fragment is None


def test_the_fastest_instructions_of_blackwell_are_counted_on_by_nothing():
    spec = load_spec("b200")
    assert {f.family for f in spec.fragments} == {"mma"}
    assert not any(f.arch for f in spec.fragments)
