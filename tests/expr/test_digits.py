"""Indices that axes write like a number, against those along which windows overlap."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from roller.expr import Index, Term


def test_blocks_are_digits_and_windows_are_not() -> None:
    channel = Index((Term("block", 16), Term("inner")))
    assert channel.is_digits({"block": 4, "inner": 16})
    assert not channel.is_digits({"block": 4, "inner": 17})
    assert not channel.is_digits({"block": 4})  # the other axis is of another kind
    assert not Index((Term("out"), Term("kernel"))).is_digits({"out": 8, "kernel": 3})
    assert not Index((Term("c", 1, 4),)).is_digits({"c": 8})


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=3))
def test_digits_never_share_a_position(parts: list[tuple[int, int]]) -> None:
    index = Index(tuple(Term(f"a{n}", coef) for n, (coef, _) in enumerate(parts)), 3)
    extents = {f"a{n}": extent for n, (_, extent) in enumerate(parts)}
    points = [dict(zip(extents, at, strict=True)) for at in itertools.product(*(range(e) for e in extents.values()))]
    if index.is_digits(extents):
        assert len({index(p) for p in points}) == len(points)
