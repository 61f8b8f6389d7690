"""Operators chosen by patterns: one meaning of ``--filter`` wherever it stands."""

from __future__ import annotations

import pytest

from roller.cli.shared_options_and_tables import read_operator_rows
from roller.errors import ArtifactError, ExprError
from roller.runtime.filter_operator_ids import filter_ids

IDS = ("M0", "M1", "C10")


@pytest.mark.parametrize("pattern", ["M1,C*", "M1,C*,", " M1 ,, C* ", ",C10,M1"])
def test_commas_and_spaces_beside_patterns_say_nothing(pattern):
    assert filter_ids(IDS, pattern, "x", ArtifactError) == ["M1", "C10"]


@pytest.mark.parametrize("pattern", ["", ",", " , "])
def test_no_pattern_is_refused(pattern):
    with pytest.raises(ArtifactError, match="--filter: expected ids or patterns"):
        filter_ids(IDS, pattern, "x", ArtifactError)


def test_what_matches_nothing_names_the_nearest():
    with pytest.raises(ArtifactError, match=r"'M11' matches none of 3 operators of x; did you mean 'M1'\?"):
        filter_ids(IDS, "M0,M11", "x", ArtifactError)


def test_an_empty_list_of_operators_is_named_as_one(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("operators: []\n")
    with pytest.raises(ExprError, match="expected at least one operator, got none"):
        read_operator_rows(path, "*")
