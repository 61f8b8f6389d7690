"""The order of a register tile's products: what it holds in registers, against a count of live values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import roller
from roller.compiler.pipeline import lower
from roller.templates.cpu.tiled.register_tile_order import count_operand_registers, loop_order_with_fewest_registers
from tests.codegen.cpu_programs import assert_right

LOOPS = 3
USES = st.lists(st.sets(st.integers(0, LOOPS - 1)), min_size=1, max_size=3)
SIZES = st.lists(st.integers(1, 4), min_size=LOOPS, max_size=LOOPS)


def most_live(order: Sequence[int], sizes: Sequence[int], uses: Collection[Collection[int]]) -> int:
    """Walk through all products and count what has been loaded and is used at that product or later."""
    points = [
        dict(zip(order, at, strict=True)) for at in itertools.product(*(range(sizes[loop]) for loop in order))
    ]  # fmt: skip
    values = [[(n, *(at[x] for x in sorted(loops))) for n, loops in enumerate(uses)] for at in points]
    first, last = dict[tuple[int, ...], int](), dict[tuple[int, ...], int]()
    for time, used in enumerate(values):
        for value in used:
            first.setdefault(value, time)
            last[value] = time
    return max(sum(first[v] <= time <= last[v] for v in first) for time in range(len(points)))


@given(st.permutations(range(LOOPS)), SIZES, USES)
def test_held_is_what_is_live(order: Sequence[int], sizes: Sequence[int], uses: Collection[Collection[int]]) -> None:
    assert count_operand_registers(order, sizes, uses) == most_live(order, sizes, uses)


@given(SIZES, USES)
def test_no_order_holds_less(sizes: Sequence[int], uses: Collection[Collection[int]]) -> None:
    chosen = loop_order_with_fewest_registers(sizes, uses)
    assert sorted(chosen) == list(range(LOOPS))
    assert most_live(chosen, sizes, uses) == min(
        most_live(order, sizes, uses) for order in itertools.permutations(range(LOOPS))
    )


def test_the_operand_of_fewer_values_is_held() -> None:
    """Beside 24 sums 2 vectors of weights fit into 32 registers, 12 elements of the image do not."""
    expr = roller.ops.conv2d(1, 32, 4, 12, 64, 1, 1, layout="NCHW16c")
    found = roller.construct(expr, device="cpu-avx512", top_k=1)[0].program
    assert [a.extent for a in found.axes] == [4, 48, 16, 2, 16]
    tiles = (("register", (2, 12, 16, 1, 1)), ("l1", (2, 12, 16, 2, 16)), ("l2", (2, 48, 16, 2, 16)))
    program = replace(found, tiles=tiles)
    text = lower(program, expr, roller.load_spec("cpu-avx512")).source
    step = text[: text.index("= acc[")].splitlines()[-4:-1]  # loops around the products: pixels, vectors, lanes
    assert [line[line.index("T.") :] for line in step] == ["T.unroll(12):", "T.unroll(2):", "T.vectorized(16):"]
    assert_right(expr, program)
