"""Bounds of indices that share axes, against every point of small boxes."""

import itertools
import random

import pytest

from roller.expr import Bound, Index, Load, Term, axis_index
from roller.expr.index_bound_proofs import HalfBound, add_provable_guards, index_stays_in_dimension


def holds(fact, at):
    value = fact.index(at)
    return (fact.low is None or value >= fact.low) and (fact.high is None or value < fact.high)


def everywhere(index, size, facts, extents):
    points = itertools.product(*map(range, extents.values()))
    values = [dict(zip(extents, p, strict=True)) for p in points]
    return all(0 <= index(at) < size for at in values if all(holds(f, at) for f in facts))


def drawn(rng, axes):
    def term():
        return Term(rng.choice(axes), rng.choice((-3, -2, -1, 1, 1, 2, 4)), rng.choice((1, 1, 1, 2, 3, 4)),
                    rng.choice((0, 0, 0, 2, 3, 5)))  # fmt: skip

    return Index(tuple(term() for _ in range(rng.randint(1, 3))), rng.randint(-6, 6))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_proved_is_true(seed):
    rng, proved, true = random.Random(seed), 0, 0
    for _ in range(40):
        extents = {a: rng.randint(1, 9) for a in "ij"}
        facts = []
        for _ in range(rng.randint(0, 3)):
            low = rng.randint(-4, 4) if rng.random() < 0.7 else None
            high = rng.randint(-2, 12) if rng.random() < 0.7 else None
            facts.append(HalfBound(drawn(rng, "ij"), low, high))
        index = drawn(rng, "ij")
        for size in (4, 9, 16):
            found, meant = (f(index, size, facts, extents) for f in (index_stays_in_dimension, everywhere))
            assert meant or not found, (index, size, facts, extents)
            proved, true = proved + found, true + meant
    assert proved > 0.9 * true, "little of what is true is given up"


def test_sums_of_guards_bound_a_difference():
    i, j = axis_index("i"), axis_index("j")
    plus, minus = Index((Term("i"), Term("j"))), Index((Term("i"), Term("j", -1)))
    extents = {"i": 10**9, "j": 10**9}
    facts = [HalfBound(plus, None, 40), HalfBound(minus, -7, 7)]
    assert index_stays_in_dimension(i, 23, facts, extents)
    assert not index_stays_in_dimension(i, 22, facts, extents)
    assert index_stays_in_dimension(Index(minus.terms, 7), 14, facts, extents)
    assert index_stays_in_dimension(j, 24, facts, extents)


def test_a_system_too_large_is_given_up():
    rng = random.Random(1)
    axes = "abcdefghij"
    facts = [HalfBound(Index(tuple(Term(a, rng.choice((-3, -2, -1, 1, 2, 3))) for a in axes)), 0) for _ in range(60)]
    assert not index_stays_in_dimension(axis_index("a"), 5, facts, dict.fromkeys(axes, 100))


def test_guards_are_added_where_they_are_implied_only():
    before, i = axis_index("i", 1, -3), axis_index("i")
    load = Load("W", (before, i), (Bound(before, 0, 30),), 2.0)
    found = add_provable_guards(load, (30, 40), (), {"i": 400})
    assert found.guard == (Bound(before, 0, 30), Bound(i, 0, 40))
    assert found.outside == 2.0
    assert add_provable_guards(load, (30, 32), (), {"i": 400}) == load
    assert add_provable_guards(load, (30, 40), (), {"i": 33}) == load, "nothing to add"


def test_each_alternative_must_keep_an_index_inside():
    wrapped = Index((Term("i", 1, 1, 60),))
    load = Load("S", (wrapped,))
    ends = [[HalfBound(axis_index("i"), None, 4)], [HalfBound(axis_index("i"), 60)]]
    assert add_provable_guards(load, (4,), ends, {"i": 64}).guard == (Bound(wrapped, 0, 4),)
    assert add_provable_guards(load, (4,), ends, {"i": 65}) == load
    assert add_provable_guards(load, (4,), [*ends, []], {"i": 64}) == load
