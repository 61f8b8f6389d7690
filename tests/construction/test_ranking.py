"""The best program found does not depend on how many are asked for; slower structures have no place of their own."""

import pytest

import roller
from roller import ops

F16 = {"dtype": "float16"}
#: Where rows that look best are padded out of the scratchpad, or conflict; and what is plain on every kind of device.
HARD = {
    "h200 transposed": ("h200", ops.matmul(4096, 1024, 512, transpose_a=True, transpose_b=True)),
    "v100 half": ("v100", ops.matmul(2048, 512, 1024, **F16)),
    "h100 vector": ("h100", ops.matmul(1024, 1, 768, batch=12, **F16)),
    "mi50 transposed": ("mi50", ops.matmul(33, 4096, 2048, transpose_b=True)),
    "a100 narrow": ("a100", ops.matmul(65536, 2, 1024)),
    "h200 walk": ("h200", ops.depthwise_conv2d(8, 84, 42, 42, 3, 3, padding=1)),
}
EXPRESSIONS = {
    "matmul": ops.matmul(1000, 77, 513),
    "transposed": ops.matmul(512, 96, 1024, transpose_a=True, transpose_b=True),
    "few rows": ops.matmul(33, 4096, 2048, transpose_b=True),
    "half": ops.matmul(1024, 512, 1024, **F16),
    "conv2d": ops.conv2d(8, 64, 28, 28, 64, 3, 3, padding=1),
    "softmax": ops.softmax((256, 200)),
}
CASES = HARD | {
    f"{device} {name}": (device, expr)
    for device in ("v100", "a100", "h200", "mi50", "cpu-avx512")
    for name, expr in EXPRESSIONS.items()
}


@pytest.mark.parametrize("case", CASES)
def test_the_best_program_does_not_depend_on_how_many_are_asked_for(case):
    device, expr = CASES[case]
    best = [roller.construct(expr, device=device, top_k=k)[0].estimate.seconds for k in (1, 2, 40)]
    assert max(best) <= 1.001 * min(best)


@pytest.mark.parametrize("count", [4, 10])
def test_a_structure_far_slower_has_no_place_of_its_own(count):
    """Threads take many times as long as an A100's matrix unit: the model is not wrong by that much."""
    expr = ops.matmul(4096, 4096, 1024, **F16)
    found = roller.construct(expr, device="a100", top_k=count)
    tiled = roller.construct(expr, device="a100", top_k=1, options=roller.ConstructOptions(top_k=1, matrix_units=False))
    assert tiled[0].estimate.seconds > 2 * found[0].estimate.seconds
    assert {c.program.structure for c in found} == {"matrix"} and len(found) == count


def test_a_structure_that_may_be_the_fastest_has_a_place():
    """On matrix units of a 24th of their speed, both ways are close."""
    rate = "compute.ops_per_cycle_per_unit.matrix.float16"
    expr, a100 = ops.matmul(4096, 4096, 1024, **F16), roller.load_spec("a100")
    near = a100.with_overrides({rate: a100.compute.ops_per_cycle_per_unit["matrix.float16"] / 24})
    found = roller.construct(expr, device=near, top_k=10)
    assert {c.program.structure for c in found} == {"matrix", "tiled"}
    others = [c for c in found if c.program.structure != found[0].program.structure]
    assert others[0].estimate.seconds <= 2 * found[0].estimate.seconds


def tiles_of(found):
    """Instruction family and block tile of programs of a matrix unit."""
    programs = [c.program for c in found if c.program.fragment is not None]
    return [(p.fragment.family, *(p.block_tile[a] for a in p.matrix_axes[:2])) for p in programs]


@pytest.mark.parametrize("device", ["h200", "a100", "v100"])
@pytest.mark.parametrize("name", ["half", "square", "conv2d"])
def test_every_tile_of_a_matrix_unit_comes_once_before_variants_of_one(device, name):
    expr = {
        "half": ops.matmul(512, 512, 8192, **F16), "square": ops.matmul(4096, 4096, 4096, **F16),
        "conv2d": ops.conv2d(32, 64, 28, 28, 128, 3, 3, padding=1, **F16),
    }[name]  # fmt: skip
    ten, many = (roller.construct(expr, device, top_k=k) for k in (10, 40))
    seconds = [c.estimate.seconds for c in ten]
    assert seconds == sorted(seconds) and seconds[0] == min(c.estimate.seconds for c in many)
    near = [c for c in many if c.estimate.seconds <= 2 * seconds[0]]
    cheapest = list(dict.fromkeys(tiles_of(near)))
    assert len(set(tiles_of(ten))) >= min(10, len(cheapest))


def test_the_tile_of_the_published_kernels_is_among_ten_on_hopper():
    found = roller.construct(ops.matmul(4096, 4096, 4096, **F16), "h200", top_k=10)
    assert len(set(tiles_of(found))) == 10 and ("wgmma", 128, 256) in tiles_of(found)
