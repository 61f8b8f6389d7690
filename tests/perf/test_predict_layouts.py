"""Named tiles of transposed operands, and of windows of one point: priced as the templates write them."""

from __future__ import annotations

import pytest

import roller
from roller import ops
from roller.construction.explicit_tiles import price_named_tiles, program_from_tiles

TILES = [((32, 128), (4, 4)), ((64, 128), (8, 8)), ((128, 128), (8, 8)), ((128, 32), (4, 4)), ((64, 64), (8, 8))]


def tiles(shared, register, step=8):
    return {"smem": (*shared, step), "reg": register}


@pytest.mark.parametrize("device", ["v100", "a100", "k80", "mi50"])
@pytest.mark.parametrize(("shared", "register"), TILES, ids=[f"{i}x{j}" for (i, j), _ in TILES])
@pytest.mark.parametrize(
    "transposed", [{"transpose_b": True}, {"transpose_a": True}, {"transpose_a": True, "transpose_b": True}]
)
def test_a_transposed_operand_costs_little(transposed, shared, register, device):
    """Lanes across the rows of what they read meet in few banks, because rows get an odd pitch."""
    plain, other = (
        roller.predict(ops.matmul(4096, 4096, 1024, **t), device, tiles(shared, register)) for t in ({}, transposed)
    )
    assert other.seconds <= 1.2 * plain.seconds


@pytest.mark.parametrize("device", ["v100", "a100"])
def test_the_layout_is_one_a_name_can_say(device):
    expr = ops.matmul(4096, 4096, 1024, transpose_b=True)
    found = price_named_tiles(expr, roller.load_spec(device), tiles((32, 128), (4, 4)))
    assert dict(found.program.storage_padding)["B"] % 2 == 1
    assert found.estimate.terms["bank_conflicts"] == 1
    assert roller.predict(expr, device, str(found.program)) == found.estimate


def test_rows_of_odd_pitch_are_read_element_by_element():
    """A pitch that no vector divides: four times the reads, and no points of the step held ahead."""
    expr = ops.matmul(1024, 1024, 512, transpose_b=True)
    base = str(program_from_tiles(expr, roller.load_spec("v100"), tiles((64, 64), (4, 4), 16)))
    name = base.split(" relaxed=")[0].replace("pad=B+4", "pad={}")
    assert "pad={}" in name
    whole, odd = (roller.predict(expr, "v100", name.format(pad)).terms for pad in ("A+4,B+4", "A+1,B+1"))
    assert odd["registers"] < whole["registers"]


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("device", ["v100", "mi50", "cpu-avx512"])
def test_a_window_of_one_point_is_a_copy(kind, device):
    """The expression's own axes, the windows' among them, mean the program the templates have for it."""
    expr = ops.pool2d(kind, 8, 24, 27, 27, 1, 1, stride=2)
    spec = roller.load_spec(device)
    best = roller.construct(expr, device, top_k=1)[0].program
    assert best.structure == "streaming"
    layers = [layer.name for layer in spec.memory_layers if layer.tiled]
    named = {layer: {"ho": 2, "wo": n} for layer, n in zip(layers, (4, 8, 8), strict=False)}
    with_windows = {layer: {**t, "kh": 1, "kw": 1} for layer, t in named.items()}
    program = program_from_tiles(expr, spec, with_windows)
    assert program.structure == "streaming" and program.axis_names == ("n", "c", "ho", "wo")
    assert roller.predict(expr, device, named) == roller.predict(expr, device, with_windows)
    assert roller.predict(expr, device, named).seconds == pytest.approx(
        roller.predict(expr, device, str(program)).seconds, rel=1e-9
    )


@pytest.mark.parametrize("fragment", [{"fragment": "mma.m16n8k16.f16.f32"}, {}], ids=["matrix", "threads"])
def test_mechanisms_of_named_tiles_are_those_of_named_programs(fragment):
    expr = ops.matmul(1024, 1024, 4096, dtype="float16", transpose_b=True)
    tile = {"smem": (64, 64, 32), "reg": (32, 32) if fragment else (4, 4)}
    how = {"stages": 3, "raster": 2, "split_k": 4}
    found = roller.predict(expr, "a100", tile, **fragment, **how)
    from roller.construction.explicit_tiles import ProgramMechanisms

    program = price_named_tiles(
        expr, roller.load_spec("a100"), tile, fragment.get("fragment"), ProgramMechanisms(3, 4, 2)
    ).program
    assert (program.stages, program.raster, program.split_k) == (3, 2, 4)
    assert roller.predict(expr, "a100", str(program)) == found


def test_warm_inputs_come_from_the_shared_cache_where_the_call_fits_it():
    """16 MB of activations need no DRAM; 96 MB are gone before they are used again."""
    small, large = (ops.matmul(m, 64, 16384, dtype="bfloat16") for m in (512, 3072))
    for expr, saved in ((small, 512 * 16384 * 2), (large, 0)):
        program = roller.construct(expr, "h100", top_k=1)[0].program
        cold, warm = (roller.predict(expr, "h100", program, warm=w) for w in ((), ("A",)))
        assert cold.terms["dram_bytes"] - warm.terms["dram_bytes"] == pytest.approx(saved)
        assert (warm.seconds < cold.seconds) == (saved > 0)
    rows = ops.softmax((1024, 1024))
    tile = roller.construct(rows, "a100", top_k=1)[0].program
    assert roller.predict(rows, "a100", tile, warm=["X"]).seconds < roller.predict(rows, "a100", tile).seconds


@pytest.mark.parametrize(
    ("device", "warm", "message"),
    [
        ("a100", ("AA",), "did you mean 'A'"),
        ("a100", "A", "a sequence of names"),
        ("cpu-avx2", ("A",), "expected a GPU"),
    ],
)
def test_warm_inputs_are_names_of_inputs_on_a_gpu(device, warm, message):
    layer = {"a100": "shared", "cpu-avx2": "l2"}[device]
    with pytest.raises(roller.errors.TileError, match=message):
        roller.predict(ops.matmul(64, 64, 64), device, {layer: {"i": 16}}, warm=warm)
