"""Small sizes, where one element more is a large part of the work: what is looked at, its price, what is built."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import roller
from roller.compiler.dynamic import cpu, price_symbolic_programs
from roller.compiler.dynamic.build_search_request import build_search_request
from roller.compiler.dynamic.compile_kernels_for_all_sizes import EFFORT
from roller.compiler.dynamic.dynamic_axes import parse_dynamic_axes
from roller.compiler.dynamic.dynamic_range import parse_open_range
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.program_families import (
    _best_open_programs,
    _family_from_unit_extent,
    choose_covering_rows,
    choose_families_of_first_extents,
    families,
    price_families_at_extents,
    sample_extents,
)
from roller.compiler.dynamic.symbolic_search import SearchState, construct_symbolic_programs
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.emit.axis_tiling_plans import program_decisions

SPEC = roller.load_spec("cpu-avx2")
OPTIONS = ConstructOptions()


@pytest.fixture(scope="module")
def product():
    varies = parse_open_range(roller.ops.matmul(64, 256, 256), {"i": (1, 64)})
    return varies, families(varies, SPEC, OPTIONS)[0]


def test_first_extents_are_looked_at_one_by_one():
    assert sample_extents(1, 4096)[:8] == tuple(range(1, 9)) and sample_extents(1, 4096)[-1] == 4096
    assert sample_extents(3, 5) == (3, 4, 5) and sample_extents(1, 12, 12) == tuple(range(1, 13))
    assert sample_extents(1, 4096, 1, 2) == (1, 64, 4096)


def test_a_family_is_priced_with_the_tile_of_its_code(product):
    family = next(f for f in product[1] if f.rows >= 5)
    more = family.rows + 1
    decisions = program_decisions(family.at(more))
    assert decisions.tile[0, family.axis] == family.rows and decisions.tiles[0, family.axis] == 2
    (one, two, whole) = price_families_at_extents([family], [family.rows, more, 2 * family.rows], SPEC)[0]
    assert two > 1.2 * one and two == pytest.approx(whole, rel=0.1), "a row more is a whole tile"


def test_programs_of_one_row_are_families(product):
    varies, found = product
    several = _best_open_programs(varies.at(1), varies, 1, SPEC, OPTIONS)
    program = next(p for p in several if p.split_k == 1)
    assert all(_family_from_unit_extent(p, found[0]) is None for p in several if p.split_k > 1)
    family = _family_from_unit_extent(program, found[0])
    assert family is not None and family.rows == 1 and "i" not in program.axis_names
    assert family.at(1).tiles[-1][1][family.axis] == 1
    assert np.isfinite(price_families_at_extents([family], [1, 2, 64], SPEC)).all()
    other = parse_open_range(roller.ops.matmul(64, 128, 256), {"i": (1, 64)})
    assert all(
        _family_from_unit_extent(p, found[0]) is None for p in _best_open_programs(other.at(1), other, 1, SPEC, OPTIONS)
    ), "other extents"


def test_the_first_extents_have_a_kernel_whose_tile_holds_all_rows():
    found = [SimpleNamespace(rows=r) for r in (1, 2, 3, 6)]
    costs = np.array(
        [[1.0, 2.0, 3.0, 40.0], [np.inf, 2.1, 3.5, 20.0], [np.inf, np.inf, 4.0, 15.0], [np.inf] * 3 + [9.0]]
    )
    assert choose_families_of_first_extents(found, (1, 2, 3, 40), costs) == [0, 1], (
        "three rows at once are predicted too far behind"
    )


def test_rows_that_are_given_come_first():
    costs = np.array([[1.0, 9.0], [9.0, 1.0], [2.0, 2.0]])
    assert choose_covering_rows(costs, np.ones(2), 3, given=[2]) == [2, 0, 1]
    assert choose_covering_rows(costs, np.ones(2), 1, given=[1]) == [1]


def test_sizes_that_grow_together_are_closer_where_they_are_small():
    places = SizeBox({"h": (7, 64), "w": (7, 64)}).sample_sizes()
    alike = sorted(p["h"] for p in places if p["h"] == p["w"])
    assert {7, 8, 9, 64} <= set(alike)
    assert len(alike) <= 12


def image_programs(shapes):
    varies = parse_dynamic_axes(roller.ops.conv2d(1, 64, 7, 21, 64, 3, 3, padding=1), shapes)
    question = build_search_request(varies, OPTIONS)
    sizes = varies.box.low
    return sizes, construct_symbolic_programs(question, [sizes], SPEC, OPTIONS, 24)[0]


def test_a_division_by_a_size_is_priced():
    sizes, programs = image_programs({"ho": (7, 64), "wo": (21, 64)})
    usual, meant = price_symbolic_programs.predicted(programs, sizes, SPEC), cpu.predicted(programs, sizes, SPEC)
    apart = [n for n, p in enumerate(programs) if p.tensors_divided_by_sizes and np.isfinite(usual[n])]
    assert all(m == u for n, (u, m) in enumerate(zip(usual, meant, strict=True)) if n not in apart)
    assert any("*" in name for n in apart for name in programs[n].open_axes), "axes in one"
    assert any(meant[n] > usual[n] for n in apart)
    assert not any(p.tensors_divided_by_sizes for p in image_programs({"n": (1, 8)})[1]), "the image is one of numbers"


def test_tasks_that_share_filters_among_them_are_a_kind():
    """Programs of one structure, tiled alike but for the filters of a task, are of two kinds."""
    _, programs = image_programs({"ho": (7, 64), "wo": (7, 64)})
    one = programs[0]
    spatial = [a.kind == "spatial" and a.extent > 8 and a.name not in one.open_axes for a in one.program.axes]
    filters = spatial.index(True)
    *inner, (layer, task) = one.program.tiles
    extent, register = one.program.axes[filters].extent, inner[-1][1][filters]

    def of_task(elements):
        tile = (*task[:filters], elements, *task[filters + 1 :])
        return replace(one, program=replace(one.program, tiles=(*inner, (layer, tile)))).kind

    assert 2 * register < extent
    assert of_task(-(-extent // register) * register) != of_task(register) == of_task(2 * register)


def test_a_kind_that_is_nearly_as_fast_at_a_timed_size_is_built():
    """Kernels of one kind cover all sizes best; another kind is within 50 % at the smallest size alone."""
    box = SizeBox({"rows": (2, 64)})
    places, kinds = box.sample_sizes(), ["a"] * 6 + ["b", "b", "c"]
    costs = np.full((len(kinds), len(places)), 9e-5)
    for n in range(6):  # each is best at two sizes
        costs[n, 2 * n : 2 * n + 2] = 1e-5
    costs[6, 0], costs[7, 0], costs[8, 0] = 1.4e-5, 1.2e-5, 1.6e-5
    families = [SimpleNamespace(kind=kind) for kind in kinds]
    question = SimpleNamespace(own=SimpleNamespace(box=box))
    s = SearchState(question, families, places, costs, costs.min(axis=0), share=0.5)
    assert set(range(6)) < set(s.wanted(EFFORT)) and 7 in s.wanted(EFFORT)
    assert not {6, 8} & set(s._rivals(range(6), EFFORT))


def test_sample_sizes_differ():
    for ends in ((2, 20), (1, 3), (5, 5)):
        found = SizeBox({"height": ends, "width": ends}).sample_sizes()
        assert len({tuple(p.items()) for p in found}) == len(found)
