"""Mutants: where they may be, what they change, and how tests that reach them are noted."""

import json

import pytest

from tools import mutants
from tools.mutants import Mutant, instrumented, mutants_of, mutated

TEXT = """LIMIT = 3


def f(x: int = 7):
    if x > 2 and not x.small:  # µ: a sign of two bytes before
        return f"{x + 1}"
    note("µ" * 3)
    for each in x:
        continue
    return min(x, LIMIT)
"""


def test_mutants_are_in_bodies_of_functions_alone():
    made = {(m.line, m.old.strip(), m.new.strip()) for m in mutants_of("a.py", TEXT)}
    assert made == {
        (5, ">", ">="), (5, "2", "3"), (5, "and", "or"), (5, "not x.small", "bool(x.small)"),
        (6, 'return f"{x + 1}"', "return None"), (7, 'note("µ" * 3)', "pass"), (7, "*", "+"), (7, "3", "4"),
        (9, "continue", "break"), (10, "return min(x, LIMIT)", "return None"), (10, "min", "max"),
    }  # fmt: skip


def test_a_mutant_changes_its_characters_alone():
    for mutant in mutants_of("a.py", TEXT):
        text = mutated(mutant, TEXT)
        assert text[: mutant.start] + mutant.old + text[mutant.start + len(mutant.new) :] == TEXT
        compile(text, "a.py", "exec")


def test_a_place_that_changed_is_refused():
    mutant = next(m for m in mutants_of("a.py", TEXT) if m.old == "3")
    with pytest.raises(ValueError, match="expected these characters there"):
        mutated(mutant, TEXT.replace('"µ" * 3', '"µ" * 5'))


def test_instrumented_places_are_noted_and_compute_what_they_did(monkeypatch):
    import sys
    import types

    noted = []
    probe = types.ModuleType("mutant_probe")
    probe.hit = noted.append
    monkeypatch.setitem(sys.modules, "mutant_probe", probe)
    text = "def f(x):\n    if x > 2:\n        return x * 5\n    print_(x)\n    return 0\n"
    found = [m for m in mutants_of("a.py", text) if m.old.strip() in (">", "*", "print_(x)")]
    told = []
    space = {"print_": told.append}
    exec(compile(instrumented(list(enumerate(found)), text), "a.py", "exec"), space)
    assert [found[i].old.strip() for i in range(3)] == [">", "*", "print_(x)"]
    assert (space["f"](4), noted) == (20, [0, 1])
    assert (space["f"](1), noted, told) == (0, [0, 1, 0, 2], [1])


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [(0, "", "survived"), (5, "", "survived"), (1, "FAILED a::b - x", "killed"), (2, "ERROR a::b", "killed"),
     (2, "usage", "not judged"), (4, "FAILED a", "not judged")],
)  # fmt: skip
def test_only_a_failed_test_kills(monkeypatch, tmp_path, status, output, verdict):
    import subprocess

    done = subprocess.CompletedProcess([], status, stdout=output, stderr="")
    monkeypatch.setattr(mutants, "_pytest", lambda *_, **__: done)
    mutant = Mutant("a.py", 1, 0, 1, 0, 1, "a", "b")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_t.py").write_text("def test_a(x):\n    pass\n")
    assert mutants.verdict_of(mutant, ["tests/test_t.py::test_a[1]"], tmp_path, [])[0] == verdict
    assert mutants.verdict_of(mutant, [], tmp_path, []) == ("survived", "no test")
    gone = mutants.verdict_of(mutant, ["tests/test_t.py::test_b", "tests/test_u.py::test_a"], tmp_path, [])
    assert gone == ("not judged", "2 tests are gone: run reach again")


def test_a_test_that_fails_without_the_mutant_kills_none(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "_copy", lambda folder: tmp_path / "copy")
    (tmp_path / "copy").mkdir()
    monkeypatch.setattr(mutants, "verdict_of", lambda *_: ("killed", "FAILED tests/t.py::a"))
    mutant = Mutant("a.py", 1, 4, 5, 4, 5, "1", "2")
    mutants.run([mutant], {mutant.name: ["tests/t.py::a"]}, tmp_path / "results.json", [])
    (result,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert (result["verdict"], result["why"][:28]) == ("not judged", "fails without the mutant too")
    assert (tmp_path / "copy" / "a.py").read_text() == "x = 1\n"
