"""Numbers as functions of sizes: found, told apart, refused."""

from __future__ import annotations

import pytest

from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.core.anti_unification import MismatchError, general
from roller.core.formula_fitting import FormulaFitter
from roller_runtime.core.size_formulas import Atom, Formula
from tests.offenders import every

POINTS = [{"b": b, "s": s} for b, s in ((3, 61), (2, 130), (7, 45), (5, 97), (4, 250), (8, 511), (6, 33), (2, 64))]
ELSEWHERE = [{"b": 1, "s": 1}, {"b": 1, "s": 512}, {"b": 8, "s": 512}, {"b": 2, "s": 31}, {"b": 5, "s": 100}]


@every(
    "meant",
    [
        lambda b, s: 17,
        lambda b, s: 64 * b * s,
        lambda b, s: s - 16,
        lambda b, s: -(-b * s // 8),
        lambda b, s: -(-s // 32) * b * 12,
        lambda b, s: s % 16,
        lambda b, s: s // 16 * 16,
        lambda b, s: -(-12 * b * s // 48),
        lambda b, s: b * s * s - s,
        lambda b, s: (2 * b - 1) * (2 * s + 3),
        lambda b, s: (4 * -(-b // 8) + 2) * (16 * -(-s // 16) + 2),
    ],
)
def test_a_formula_is_found_and_right_elsewhere(meant):
    fitter = FormulaFitter(POINTS, {8, 16, 32, 48}, [Formula(0, ((12, (Atom(("b", "s")),)),))])
    found = fitter.fit([meant(**p) for p in POINTS])
    assert found is not None
    assert [found.at(p) for p in ELSEWHERE] == [meant(**p) for p in ELSEWHERE]


def test_points_of_several_images_with_their_edges_are_found_from_few_points():
    points = [{"h": h, "n": p["b"], "w": p["s"]} for h, p in zip((9, 4, 31, 17, 22, 8, 13, 40), POINTS, strict=True)]
    found = FormulaFitter(points).fit([p["n"] * (2 * p["h"] - 1) * (p["w"] + 2) for p in points])
    assert found is not None and found.at({"h": 5, "n": 3, "w": 7}) == 3 * 9 * 9


def test_what_is_no_function_of_the_sizes_is_not_found():
    assert FormulaFitter(POINTS, {8}).fit([3, 1, 4, 1, 5, 9, 2, 6]) is None


def test_formulas_that_agree_so_far_are_told_apart_by_sizes_where_they_differ():
    points = [p for p in POINTS if p["s"] % 16]  # there a count rounded up is one rounded down, and one more
    fitter = FormulaFitter(points, {16})
    fitter.fit([-(-p["s"] // 16) for p in points])
    assert fitter.doubtful([{"b": 2, "s": 64}, {"b": 2, "s": 65}]) == [True, False]
    more = [*points, {"b": 2, "s": 64}]
    found = FormulaFitter(more, {16}).fit([-(-p["s"] // 16) for p in more])
    assert found is not None and [found.at({"b": 1, "s": s}) for s in (1, 16, 17)] == [1, 1, 2]


def test_nested_data_of_all_sizes():
    data = [{"shape": [p["b"] * p["s"], 64], "name": "x", "parts": ({"offset": 4 * p["s"]}, True)} for p in POINTS]
    made = general(data, FormulaFitter(POINTS)).at({"b": 1, "s": 512})
    assert made == {"shape": [512, 64], "name": "x", "parts": [{"offset": 2048}, True]}


@every(
    "differ", [lambda n: {"a": n, "b": 1} if n else {"a": 1}, lambda n: [1] * (n + 1), lambda n: "xy"[n % 2],
               lambda n: n / 2, lambda n: bool(n)],
)  # fmt: skip
def test_data_that_differ_in_more_than_numbers_are_refused(differ):
    with pytest.raises(MismatchError, match="expected"):
        general([differ(n) for n in range(3)], FormulaFitter(POINTS[:3]))


def test_sizes_to_look_at_lie_in_the_box_and_none_is_one():
    box = SizeBox({"b": (1, 8), "s": (1, 512)})
    some = [p for p, _ in zip(box.random_sizes(0), range(200), strict=False)]
    assert all(2 <= p["b"] <= 8 and 2 <= p["s"] <= 512 for p in some)
    assert {p["b"] for p in some} == set(range(2, 9)) and min(p["s"] for p in some) < 4
    assert box.low in box.sample_sizes() and box.high in box.sample_sizes()
    assert box.raise_ones_to_two(box.low) == {"b": 2, "s": 2} and box.middle == {"b": 3, "s": 23}
