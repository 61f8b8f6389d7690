"""Data with formulas survive their JSON form, whatever names they contain."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from roller_runtime.core.generalized_data import GeneralizedData
from roller_runtime.core.size_formulas import Atom, Formula, Inverse

SIZES = {"a": 3, "b": 17}
ATOMS = st.builds(
    Atom,
    st.lists(st.sampled_from(list(SIZES)), min_size=1, max_size=2).map(tuple),
    st.sampled_from(["*", "ceil", "floor", "mod", "share"]),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 50),
    st.integers(-3, 3),
)
TERMS = st.lists(st.tuples(st.integers(-4, 4), st.lists(ATOMS, min_size=1, max_size=2).map(tuple)), max_size=2)
FORMULAS = st.builds(Formula, st.integers(1, 9), TERMS.map(tuple))
INVERSES = st.builds(lambda a: Inverse(Formula(1, ((1, (a,)),))), st.builds(Atom, st.just(("a",))))
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | FORMULAS | INVERSES
KEYS = st.sampled_from(["", "x", "formulas", "data"])
NODES = st.recursive(LEAVES, lambda n: st.lists(n, max_size=3) | st.dictionaries(KEYS, n, max_size=3))


@given(NODES)
def test_data_survive_their_json_form(node):
    data = GeneralizedData(node)
    again = GeneralizedData.from_json(json.loads(json.dumps(data.to_json())))
    assert again.at(SIZES) == data.at(SIZES)
    assert again.at(SIZES) == GeneralizedData.from_json(again.to_json()).at(SIZES)


def test_equal_formulas_are_written_once():
    formula = Formula(0, ((2, (Atom(("a",)),)),))
    assert GeneralizedData([formula, {"x": formula}]).to_json() == {
        "formulas": [["n", formula.to_list()]],
        "data": [{"": 0}, {"x": {"": 0}}],
    }
