"""A run is where an address really walks evenly, whatever other terms of the axis do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roller.expr import Index, StridedRun, Term, axis_index, strided_run_along

_FACTORS = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12, 15])
_TERMS = st.builds(
    Term,
    st.just("v"),
    st.sampled_from([-7, -1, 1, 1, 2, 5, 15]),
    _FACTORS,
    st.sampled_from([0, 0, 2, 3, 4, 5, 6, 12, 15]),
)


def places(index, shape, extent):
    pitches = np.cumprod([1, *shape[:0:-1]])[::-1]
    at = {"v": np.arange(extent)}
    return sum(p * np.asarray(i(at)) + np.zeros(extent, int) for i, p in zip(index, pitches, strict=True))


@given(st.lists(st.lists(_TERMS, max_size=3), min_size=1, max_size=2), st.integers(1, 80))
def test_inside_a_run_neighbours_are_one_step_apart(terms, extent):
    index, shape = [Index(tuple(t)) for t in terms], (7, 15)[: len(terms)]
    run = strided_run_along(index, shape, "v", extent)
    if run is None:
        assert not any(terms)
        return
    at = places(index, shape, extent)
    here = np.arange(extent)
    assert (at == at[here // run.length * run.length] + here % run.length * run.step).all()
    assert 1 <= run.length <= extent


def test_a_later_term_breaks_the_run_of_the_first():
    """The store of a sum was written in vectors over the jumps of the second quotient."""
    index = (Index((Term("a", 1, 60_000), Term("a", -1, 60_003)), 3), axis_index("a"))
    assert strided_run_along(index, (8, 200_000), "a", 200_000) == StridedRun(3, 1)


def test_digits_of_one_axis_are_one_run():
    image = (Index((Term("v", 1, 15),)), Index((Term("v", 1, 5, 3),)), Index((Term("v", 1, 1, 5),)))
    assert strided_run_along(image, (4, 3, 5), "v", 60) == StridedRun(60, 1)
    assert strided_run_along(image, (4, 4, 5), "v", 60) == StridedRun(15, 1)
    assert strided_run_along(image, (4, 4, 6), "v", 60) == StridedRun(5, 1)
    assert strided_run_along(image[:1], (4,), "v", 60) == StridedRun(15, 0)
