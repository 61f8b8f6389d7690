"""Any program the pools of rows and streams offer is right, and the best of the published operators do not spill."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
from benchmarks import ptx
from benchmarks.tables import read_table
from roller import ops
from roller.backends.cuda import toolchain
from roller.compiler import pipeline
from roller.construction.constructor import program_from_row
from roller.emulator import prove
from roller.runtime.check import check
from roller.templates.common.forms import canonical_forms
from roller.templates.common.options import ConstructOptions
from roller.templates.gpu import programs_of_form
from roller.tile.geometry import Geometry
from tests.emulator.test_stream_programs import channels_last, transpose

MAKERS = {
    "softmax": lambda a, b: ops.softmax((a, b)),
    "softmax of columns": lambda a, b: ops.softmax((2, a, b), axis=1),
    "half norm": lambda a, b: ops.layer_norm((a, b), dtype="float16"),
    "rms norm": lambda a, b: ops.rms_norm((a, b)),
    "columns": lambda a, b: ops.reduce("sum", (a, b), (0,)),
    "positions": lambda a, b: ops.reduce("argmax", (a, b), (1,)),
    "channels": lambda a, b: ops.reduce("mean", (3, a, b), (0, 2), dtype="float16"),
    "everything": lambda a, b: ops.reduce("sum", (a * b,), (0,)),
    "integers": lambda a, b: ops.reduce("sum", (a, b), (1,), dtype="int8"),
    "transpose": transpose,
    "channels last": lambda a, b: channels_last(2, a, b, "float16"),
    "stream": lambda a, b: ops.elementwise(("add", "relu"), (a, b), dtype="float16"),
}
ROWS = [
    r for r in read_table("operators.yaml")["operators"]
    if r["op"] in ("reduce", "elementwise")
]  # fmt: skip
MODELS = {
    "softmax": ops.softmax((4096, 1024)),
    "half softmax": ops.softmax((16384, 512), dtype="float16"),
    "softmax of columns": ops.softmax((64, 128, 1000), axis=1),
    "norm": ops.layer_norm((8192, 4096)),
    "odd norm": ops.layer_norm((1000, 1001)),
    "half norm": ops.rms_norm((2048, 8192), dtype="float16"),
}
DEVICES = {"sm_70": "v100", "sm_80": "a100", "sm_90": "h200"}


@pytest.mark.parametrize("name", MAKERS)
def test_any_program_of_the_pool_is_right(built, name):
    rng = random.Random(name)
    expr = MAKERS[name](rng.choice([3, 7, 16, 33]), rng.choice([5, 61, 100, 257]))
    spec = roller.load_spec(rng.choice(["v100", "h200"]))
    for batch in programs_of_form(Geometry.of(canonical_forms(expr, ConstructOptions())[0]), spec, ConstructOptions()):
        program = program_from_row(batch, rng.randrange(len(batch)), spec)
        proof = prove(pipeline.lower(program, expr, spec), compare=lambda *a: check(*a).message, cache_dir=built)
        assert proof.ok, f"{program}: {proof}"


def assert_builds(expr, arch, count):
    spec = roller.load_spec(DEVICES[arch])
    for c in roller.construct(expr, spec, top_k=count):
        artifact = replace(pipeline.lower(c.program, expr, spec), estimate=c.estimate.to_dict())
        kernels = ptx.kernels(toolchain.compile_to_ptx(artifact.source, arch)).values()
        assert not [c for k in kernels for c in k.counts if c.startswith("local")], c.program
        assert toolchain.build(artifact).build["spill_bytes"] == 0, c.program


@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_best_norms_keep_their_rows_in_registers_without_spills(name, arch):
    expr = MODELS[name]
    assert_builds(expr, arch, 1)
    program = roller.construct(expr, roller.load_spec(DEVICES[arch]), top_k=1)[0].program
    assert set(program.reduction_steps.values()) == {1}


@pytest.mark.slow
@pytest.mark.skipif(toolchain.available() is not None, reason="needs the CUDA wheels")
@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_published_streams_and_sums_do_not_spill(row, arch):
    assert_builds(ops.from_spec(row), arch, 3)
