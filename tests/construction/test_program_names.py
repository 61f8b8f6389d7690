"""Every program has a name, and the name gives it back: the same object, at the same price to the last digit."""

from __future__ import annotations

import math
import random
import re
from types import SimpleNamespace

import pytest

import roller
from benchmarks.tables import read_table
from roller import ops
from roller.construction.neighbours import neighbour_programs
from roller.construction.parse_program_names import program_from_name
from roller.errors import TileError
from roller.hardware import load_spec
from roller.tile.program import RProgram
from roller.tile.program_name import ProgramName, parse_program_name
from tests.cases import ODD_CASES
from tests.offenders import every

DEVICES = ("cpu", "cpu-neon", "v100", "h200", "mi250x")
ROWS = read_table("operators.yaml")["operators"]
ODD = dict(ODD_CASES)
#: A few of every structure: pipelines, matrix units, splits, windows, rows held, streams, transposes, Winograd.
FEW = {
    "matmul": ops.matmul(512, 768, 1024),
    "deep": ops.matmul(64, 64, 8192),
    "half": ops.matmul(1024, 512, 1024, dtype="float16"),
    "conv": ops.conv2d(4, 32, 14, 14, 64, 3, 3, padding=1, epilogue=("bias", "relu")),
    "depthwise": ops.depthwise_conv2d(4, 32, 28, 28, 3, 3, padding=1),
    "softmax": ops.softmax((512, 1000)),
    "norm": ops.layer_norm((256, 768)),
    "sum": ops.reduce("sum", (64, 4096), axes=(1,)),
    "relu": ops.elementwise("relu", (1 << 20,)),
}


def fifty():
    """Return fifty operators: every fourth of the paper's, and odd ones of every kind."""
    rows = {r["id"]: (lambda r=r: ops.from_spec(r)) for r in ROWS[::4]}
    names = sorted(ODD)
    return {**rows, **{n: ODD[n] for n in names[:: len(names) // (50 - len(rows)) or 1]}}


def check_named_back(expr, device, options=None):
    """Name every program construct prints back, as an object and as a price; return how many there were."""
    spec = load_spec(device)
    found = roller.construct(expr, spec, options=options)
    for c in found:
        again = program_from_name(expr, spec, str(c.program))
        assert again == c.program, f"{device}: {c.program}"
        assert str(again) == str(c.program)
        assert roller.predict(expr, spec, str(c.program)) == c.estimate, f"{device}: {c.program}"
    return len(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FEW)
def test_what_construct_prints_is_named_back(name, device):
    assert check_named_back(FEW[name], device) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_fifty_operators_are_named_back(device):
    operators = fifty()
    assert len(operators) >= 50
    assert sum(check_named_back(make(), device) for make in operators.values()) > 8 * len(operators)


@pytest.mark.parametrize("switch", [
    {"axis_fusion": False}, {"axis_grouping": False}, {"constants": ("B",)},
    {"pipelining": False, "split_k": False}, {"matrix_units": False},
])  # fmt: skip
@pytest.mark.parametrize("device", ["cpu-avx512", "h200"])
def test_programs_of_any_option_are_named_back(switch, device):
    check_named_back(ops.matmul(64, 48, 96, batch=3, dtype="float16"), device, roller.ConstructOptions(**switch))


def test_blocked_channels_are_named_back():
    expr = ops.conv2d(1, 32, 14, 14, 64, 3, 3, padding=1, layout="NCHW16c")
    assert check_named_back(expr, "cpu-avx512") >= 1


def test_neighbours_are_named_back():
    spec = load_spec("h200")
    best = roller.construct(FEW["half"], spec, top_k=1)[0].program
    for c in neighbour_programs(best, FEW["half"], spec, roller.ConstructOptions())[:40]:
        assert program_from_name(FEW["half"], spec, str(c.program)) == c.program
        assert roller.predict(FEW["half"], spec, c.program) == c.estimate


def test_names_that_would_be_misread_are_strings():
    odd = ("a b", 'q"]=,', "it's", "i", "")
    program = SimpleNamespace(
        kind="gpu", structure="tiled", axis_names=odd, tiles=(("register", (1, 2, 3, 4, 5)), ("shared", (6,) * 5)),
        vector_axis="a b", vector_elements=4, staged=odd[:3], storage_padding=(("it's", 4), ("A+1", 8)),
        interleaved=True, split_k=2, constants=("i",), nontemporal=True, stages=3, raster=4,
        fragment=SimpleNamespace(name="mma.x"), matrix_axes=odd[1:4], relaxed=("bank",),
    )  # fmt: skip
    text = RProgram.__str__(program)  # of no expression: a stand-in
    assert "'" not in text, "it is quoted by these in a shell"
    said = parse_program_name(f"  {text}\n")
    assert said == ProgramName(
        "gpu", "tiled", tuple((x, tuple(zip(odd, e, strict=True))) for x, e in program.tiles), ("a b", 4), odd[:3],
        program.storage_padding, True, 2, ("i",), True, 3, 4, "mma.x", odd[1:4],
    )  # fmt: skip
    assert said.relaxed == ("bank",)


def test_axes_and_tensors_of_any_name_are_named_back():
    te = pytest.importorskip("tvm.te")
    a = te.placeholder((64, 32), name='a,"b] x', dtype="float32")
    b = te.placeholder((32, 48), name="it's=1", dtype="float32")
    k = te.reduce_axis((0, 32), name="k k")
    c = te.compute((64, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C[0]")
    for device in ("cpu-avx512", "v100"):
        for found in roller.construct([a, b, c], device, top_k=3):
            assert roller.predict([a, b, c], device, str(found.program)) == found.estimate


def test_a_program_keeps_its_price_where_it_is_named_on_a_changed_device():
    spec = load_spec("v100").with_overrides({"units": 40})
    found = roller.construct(FEW["matmul"], spec, top_k=1)[0]
    assert roller.predict(FEW["matmul"], spec, found.program) == found.estimate
    assert roller.predict(FEW["matmul"], "v100", found.program) != found.estimate


def test_tiles_with_their_mechanisms_are_the_winner():
    """The tiles alone are another program: what made it fast has to be said."""
    won = roller.construct(FEW["half"], "h200")
    for c in (c for c in won if c.program.fragment is not None):
        p = c.program
        tiles = {layer: p.tile(layer) for layer in p.layers}
        how = {"stages": p.stages, "split_k": p.split_k, "raster": p.raster}
        assert roller.predict(FEW["half"], "h200", tiles, fragment=p.fragment.name, **how).seconds == c.estimate.seconds
    c = roller.construct(FEW["deep"], "v100", top_k=1)[0]
    assert c.program.mechanisms
    tiles = {layer: c.program.tile(layer) for layer in c.program.layers}
    how = {"stages": c.program.stages, "split_k": c.program.split_k, "raster": c.program.raster}
    assert roller.predict(FEW["deep"], "v100", tiles, **how).seconds == c.estimate.seconds
    assert roller.predict(FEW["deep"], "v100", tiles).seconds > 1.5 * c.estimate.seconds


MATMUL = "gpu/tiled register[i=4 j=4 k=1] shared[i=32 j=64 k=16] vector=j:4 staged=A,B interleaved"


@every(("name", "words"), [
    ("", "'gpu/STRUCTURE'"),
    ("nonsense", "'gpu/STRUCTURE'"),
    (MATMUL.replace("gpu", "cpu"), "kind 'gpu'"),
    (MATMUL.replace("tiled", "tield"), "did you mean 'tiled'"),
    (MATMUL.replace("tiled", "rows"), "structure that computes"),
    (MATMUL.replace("tiled", "window"), "structure that computes"),
    (MATMUL.replace("tiled", "winograd2"), "structure that computes"),
    (MATMUL.replace("tiled", "matrix"), "of a 'matrix' program"),
    (MATMUL.replace("i=", "x="), "axes of a form"),
    (MATMUL.replace("register[", "registers["), "expected tiles in"),
    (MATMUL.replace("i=32", "i=30"), "multiple"),
    (MATMUL.replace("i=32", "i=0"), "numbers from 1"),
    (MATMUL.replace("i=32", "i=3.5"), "AXIS=EXTENT"),
    (MATMUL.replace("i=32", "i=99999999999999999999"), "AXIS=EXTENT"),
    (MATMUL.replace("staged=A,B", "staged=A"), "staged"),
    (MATMUL.replace("staged=A,B", "staged=A,Q"), "staged"),
    (MATMUL.replace("j:4", "j:3"), "vector"),
    (MATMUL.replace("j:4", "q:4"), "vector"),
    (MATMUL + " pad=Q+4", "pad"),
    (MATMUL + " stages=2 stages=3", "each once"),
    (MATMUL + " stags=2", "did you mean 'stages'"),
    (MATMUL + " split_k=100000", "split_k"),
    (MATMUL + " nontemporal", "CPU"),
    (MATMUL + " fragment=mma.m16n8k16.f16.f32:i,j,k", "and of no other"),
    (MATMUL.replace("tiled", "matrix") + " fragment=mma.m16n8k16.f16.f32:i,j,k", "no fragment"),
    (MATMUL + " relaxed=none", "alignment rule"),
    (MATMUL.replace("i=4 ", "i=32 ").replace("j=4 ", "j=64 "), "registers"),
    (MATMUL.replace("k=16", "k=1024"), "scratchpad"),
    (MATMUL.replace("i=32", "i=512"), "threads"),
    ("gpu/" + "x" * 100000, "expected"),
    (MATMUL + ' staged="A', "expected"),
])  # fmt: skip
def test_what_is_no_program_is_refused(name, words):
    with pytest.raises(TileError, match=re.escape(words)) as refused:
        roller.predict(ops.matmul(512, 512, 1024), "v100", name)
    assert len(str(refused.value)) < 3000


def test_threads_walk_whole_windows():
    pool = ops.pool2d("max", 2, 4, 20, 20, 3, 3)
    name = next(n for c in roller.construct(pool, "v100") if "gpu/window" in (n := str(c.program)))
    with pytest.raises(TileError, match=r"expected whole windows .* 3 along 'kh', got 1 in 'register'"):
        roller.predict(pool, "v100", name.replace("kh=3", "kh=1"))


def test_mechanisms_that_tiles_cannot_have_are_refused():
    tiles = {"shared": (64, 64, 8), "register": (4, 4, 1)}
    for wrong in ({"stages": 0}, {"split_k": 1.5}, {"raster": True}, {"stages": 10**12}):
        with pytest.raises(TileError, match="expected an integer"):
            roller.predict(FEW["matmul"], "v100", tiles, **wrong)
    with pytest.raises(TileError, match="Leave them out"):
        roller.predict(FEW["relu"], "v100", {"register": (4,), "shared": (1024,)}, stages=2)
    with pytest.raises(TileError, match="a GPU's"):
        roller.predict(FEW["matmul"], "cpu-avx512", {"register": (4, 16, 1)}, stages=2)
    with pytest.raises(TileError, match="Write them into it"):
        roller.predict(FEW["matmul"], "v100", MATMUL, stages=2)


@pytest.mark.parametrize("device", ["cpu-avx512", "v100", "h200"])
@pytest.mark.parametrize("name", FEW)
def test_a_changed_name_is_a_program_or_an_error_that_says_why(name, device):
    """Numbers and words of names are changed at random: what comes is priced, or refused by a TileError."""
    draw = random.Random(f"{name}/{device}")
    names = [str(c.program) for c in roller.construct(FEW[name], device)]
    for _ in range(25):
        words = draw.choice(names).split()
        at = draw.randrange(len(words))
        if draw.random() < 0.7:
            words[at] = re.sub(r"\d+", lambda m: str(draw.choice([0, 1, 3, 2 * int(m[0]), int(m[0]) // 2])), words[at])
        elif draw.random() < 0.5:
            del words[at]
        else:
            words.insert(at, draw.choice(draw.choice(names).split()))
        try:
            estimate = roller.predict(FEW[name], device, " ".join(words))
        except TileError:
            continue
        assert math.isfinite(estimate.seconds) and estimate.seconds > 0, " ".join(words)
