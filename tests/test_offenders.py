"""A rule over many items: all that break it are named, and nothing is swallowed."""

from __future__ import annotations

import os

import pytest

from tests.offenders import Offenders, every


def _said(test, **fixtures):
    with pytest.raises(AssertionError) as failed:
        test(**fixtures)
    return str(failed.value)


def test_all_offenders_are_named_with_their_reasons():
    @every("name, n", [("one", 1), ("two", 2), ("three", 3), ("four", 4)])
    def rule(name, n):
        assert n % 2, f"{n} is even"

    said = _said(rule)
    assert said.startswith("2 of 4 items break the rule")
    assert "- two-2: test_offenders.py:" in said and "2 is even" in said
    assert "- four-4: test_offenders.py:" in said and "4 is even" in said
    assert "one-1" not in said and "three-3" not in said


def test_errors_that_are_no_assertions_are_named_with_their_type_and_the_rest_is_looked_at():
    seen = []

    @every("what", [KeyError("a key"), SystemExit(3), None, OSError("a file")], ids=["k", "s", "n", "o"])
    def rule(what):
        seen.append(what)
        if what is not None:
            raise what

    said = _said(rule)
    assert len(seen) == 4 and said.startswith("3 of 4 items")
    for line in ("- k: ", "KeyError: 'a key'", "- s: ", "SystemExit: 3", "- o: ", "OSError: a file"):
        assert line in said


def test_fail_and_skip_are_offences():
    @every("end", [pytest.fail, pytest.skip])
    def rule(end):
        end("for a reason")

    said = _said(rule)
    assert "2 of 2 items" in said and ": for a reason" in said and "Skipped: for a reason" in said


@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.exit.Exception])
def test_what_ends_the_run_ends_it(error):
    @every("n", [1, 2])
    def rule(n):
        assert n == 2
        raise error

    with pytest.raises(error):
        rule()


def test_nothing_to_look_at_is_a_failure():
    @every("n", [])
    def rule(n):
        raise NotImplementedError

    assert "no items" in _said(rule)
    assert "no items" in _said(every("m", [1])(rule))
    with pytest.raises(AssertionError, match="no items"), Offenders():
        pass


def test_an_error_between_items_leaves_those_found_before_it_named():
    with pytest.raises(AssertionError) as failed, Offenders() as offenders:
        with offenders.of("the first"):
            assert not "wrong"
        raise ValueError("elsewhere")
    assert "- the first: " in str(failed.value) and "- between items: " in str(failed.value)
    assert isinstance(failed.value.__cause__, AssertionError), "the traceback of the first"


def test_after_a_timeout_no_other_item_runs_without_a_limit():
    ran = []

    @every("n", [1, 2])
    def rule(n):
        ran.append(n)
        pytest.fail("Timeout (>1.0s) from pytest-timeout.")

    with pytest.raises(AssertionError, match=r"- 1: .*Timeout"):
        rule()
    assert ran == [1]


def test_a_long_reason_is_cut_short():
    with pytest.raises(AssertionError) as failed, Offenders() as offenders, offenders.of("long"):
        raise ValueError("\n".join(map(str, range(100))))
    assert "\n    11\n    ... 88 more lines" in str(failed.value)


def test_items_are_named_as_by_pytest():
    @every("a", [pytest.param(1, id="mine"), 2, 2, str, "x" * 100])
    @every("b", ["p", "q"], ids=lambda b: b.upper())
    def rule(a, b):
        raise ValueError

    said = _said(rule)
    assert "10 of 10 items" in said
    for name in ("P-mine", "Q-mine", "P-2", "P-2 (2)", "Q-2", "Q-2 (2)", "P-str", "Q-a4"):
        assert f"- {name}: " in said
    with pytest.raises(AssertionError, match="has marks"):
        every("a", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(AssertionError, match="1 ids of 2 items"):
        every("a", [1, 2], ids=["one"])


@every("n", [1, 2, 3])
@pytest.mark.parametrize("case", ["a", "b"])
def test_items_share_no_folder_and_no_patch(n, case, tmp_path, monkeypatch, request):
    assert list(tmp_path.iterdir()) == [] and "ROLLER_OFFENDERS" not in os.environ
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLER_OFFENDERS", case)
    assert request.node.callspec.params == {"case": case}


@pytest.mark.skip(reason="kept by the test of all")
@every("n", [1])
@pytest.mark.slow
def _marked(n):
    raise NotImplementedError


def test_marks_stay_and_many_quick_items_do_not_make_a_slow_test():
    assert sorted(mark.name for mark in _marked.pytestmark) == ["always", "skip", "slow"]
