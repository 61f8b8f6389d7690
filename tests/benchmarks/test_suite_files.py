"""Values of suites, their files, and what a run is compared with: damaged files, names from files, empty filters."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.suites import running
from benchmarks.suites.registry import SUITES
from benchmarks.suites.running import check_folder, finish, run_suite, stem_of
from benchmarks.suites.suite import Request, Suite
from benchmarks.suites.values import (
    COUNTED,
    MEASURED,
    PREDICTED,
    PUBLISHED,
    Change,
    Results,
    Value,
    changes,
    read,
    write,
)
from roller.errors import RollerError
from roller.hardware import load_spec
from tests.offenders import every

V100 = load_spec("v100")
HEAD = {
    "suite": "fake", "device": "v100", "quick": False, "filter": "*", "seed": 0, "date": "2026-11-29T12:00:00",
    "revision": "a1",
}  # fmt: skip


def results(*values, **head):
    return Results({**HEAD, **head}, tuple(values))


def time_of(value, kind=PREDICTED, low=None, high=None, case="M1"):
    return Value(case, "time", "Roller", value, "s", kind, low, high)


# Values and their file.


def test_a_file_of_values_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "a.json"
    held = results(
        time_of(1.25e-4), time_of(None)._replace(note="no program fits"), time_of(2.0, MEASURED, 1.5, 2.5, "é"),
        Value("M1", "programs priced", "Roller", 12, "", COUNTED),
    )  # fmt: skip
    write(path, held)
    assert read(path) == held
    assert len(path.read_text(encoding="utf-8").splitlines()) > len(held.values), "one line a value"


GOOD = results(time_of(1.0)).to_dict()
DAMAGED = {
    "cut off": json.dumps(GOOD)[:-5],
    "another format": json.dumps({**GOOD, "format": "x"}),
    "another version": json.dumps({**GOOD, "version": 99}),
    "no values": json.dumps({k: v for k, v in GOOD.items() if k != "values"}),
    "an unknown field": json.dumps({**GOOD, "values": [{**GOOD["values"][0], "colour": 1}]}),
    "a missing field": json.dumps({**GOOD, "values": [{"case": "M1"}]}),
    "a list": "[1, 2]",
}


@every("name", DAMAGED)
def test_a_damaged_file_is_refused_with_its_path(name, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(DAMAGED[name], encoding="utf-8")
    with pytest.raises(RollerError, match=r"a\.json"):
        read(path)


def test_values_are_found_by_quantity_series_and_kind():
    held = results(time_of(1.0), time_of(None, case="M2"), Value("M1", "time", "library", 2.0, "s", PUBLISHED))
    assert held.of("time", "Roller") == {"M1": held.values[0]}
    assert held.of("time")["M1"].series == "library", "the last of a case"
    assert held.of("time", kind=PREDICTED) == {"M1": held.values[0]}
    assert held.grouped() == {
        ("Roller", PREDICTED): {"M1": held.values[0]},
        ("library", PUBLISHED): {"M1": held.values[2]},
    }
    assert held.times()["library", PUBLISHED] == {"M1": 2.0}


# Comparison with the last run.


@every("kind", [PREDICTED, COUNTED, PUBLISHED])
def test_values_without_noise_differ_by_any_change(kind):
    before = results(time_of(1.0, kind))
    assert not changes(before, results(time_of(1.0 + 1e-12, kind)))
    (change,) = changes(before, results(time_of(1.0 + 1e-6, kind)))
    assert change.key == ("M1", "time", "Roller", kind) and change.ratio == pytest.approx(1 + 1e-6)


def test_measured_values_differ_where_intervals_do_not_overlap():
    before = results(time_of(1.0, MEASURED, 0.9, 1.1))
    assert not changes(before, results(time_of(1.25, MEASURED, 1.05, 1.4)))
    assert not changes(before, results(time_of(0.8, MEASURED, 0.7, 0.9))), "touching ends overlap"
    assert [c.after for c in changes(before, results(time_of(1.12, MEASURED, 1.11, 1.13)))] == [1.12]
    assert [c.after for c in changes(before, results(time_of(0.5, MEASURED, 0.4, 0.6)))] == [0.5]


def test_measured_values_without_intervals_differ_beyond_noise():
    before = results(time_of(1.0, MEASURED))
    assert not changes(before, results(time_of(1.09, MEASURED)))
    assert not changes(before, results(time_of(0.91, MEASURED, 0.90, 0.92))), "one interval alone decides nothing"
    assert [c.after for c in changes(before, results(time_of(1.2, MEASURED)))] == [1.2]


def test_a_value_that_one_run_lacks_is_a_change():
    both = results(time_of(1.0), time_of(2.0, case="M2"))
    key = ("M2", "time", "Roller", PREDICTED)
    assert changes(results(time_of(1.0)), both) == [Change(key, None, 2.0)]
    assert changes(both, results(time_of(1.0))) == [Change(key, 2.0, None)]
    without = results(time_of(1.0), time_of(None, case="M2"))
    assert changes(both, without) == [Change(key, 2.0, None)]
    assert not changes(without, without), "none is none"
    assert changes(results(time_of(1.0)), without) == [Change(key, None, None)], "a case that is new, without a value"
    assert Change(key, None, 2.0).ratio is None and Change(key, 0.0, 2.0).ratio is None


def test_another_kind_is_another_value():
    found = changes(results(time_of(1.0)), results(time_of(1.0, MEASURED)))
    assert [(c.key[3], c.before, c.after) for c in found] == [(MEASURED, None, 1.0), (PREDICTED, 1.0, None)]


# Running.


def test_kinds_are_named_in_a_sentence():
    values = [time_of(1.0, kind) for kind in (MEASURED, PREDICTED, PUBLISHED, MEASURED)]
    assert running.kinds_of(values[1:2]) == "All values are predicted: no device ran anything"
    assert running.kinds_of(values[:1]) == "Values are measured, as the columns say"
    assert running.kinds_of(values[:2]) == "Values are measured and predicted, as the columns say"
    assert running.kinds_of(values) == "Values are measured, predicted and published, as the columns say"


def fake(*values, measure=None, draw=None):
    def report(found):
        yield "Times", ("case", "s"), [(v.case, f"{v.value}") for v in found.values]

    return Suite("fake", "A suite of a test", "nothing", lambda _: iter(values), measure, report, draw, "Read it so.")


def test_a_run_is_written_and_compared_with_the_last(tmp_path, capsys):
    request = Request(V100, folder=tmp_path / "out", quick=True)
    suite = fake(time_of(1.0), time_of(3.0, case="M2"))
    running.finish(suite, request, running.run_suite(suite, request))
    first = capsys.readouterr().out
    assert "No earlier run to compare with" in first and "no device ran anything. Read it so." in first
    stem = tmp_path / "out" / "fake-v100-quick"
    held = read(stem.with_suffix(".json"))
    assert held.head["suite"] == "fake" and held.head["device"] == "v100" and held.head["quick"] is True
    assert "| M2 | 3.0 |" in stem.with_suffix(".md").read_text(encoding="utf-8")
    assert not stem.with_suffix(".png").exists()
    suite = fake(time_of(1.0), time_of(6.0, case="M2"))
    running.finish(suite, request, running.run_suite(suite, request))
    second = " ".join(capsys.readouterr().out.split())
    assert "1 value changed, 1 did not" in second
    assert "M2, time, Roller, predicted: 3 -> 6 (2.000 times)" in second


def test_a_filtered_run_has_files_of_its_own(tmp_path):
    paths = {running.stem_of(fake(), Request(V100, pattern=p, folder=tmp_path)) for p in ("*", "M*", "M/../*", "M1,C*")}
    assert len(paths) == 4 and {path.parent for path in paths} == {tmp_path}
    assert tmp_path / "fake-v100" in paths
    names = [path.name for path in paths]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in names), names
    assert len(running.stem_of(fake(), Request(V100, pattern="x," * 500)).name) < 60


@every("entry", running.SAME_RUN)
def test_a_run_of_another_kind_is_not_compared(entry, tmp_path):
    path = tmp_path / "a.json"
    write(path, results(time_of(1.0), **{entry: "another"}))
    (line,) = running.compared(path, results(time_of(2.0)))
    assert line == f"The earlier run is not comparable: its {entry} differs."


def test_what_changed_is_counted_by_values_of_the_new_run(tmp_path):
    path = tmp_path / "a.json"
    write(path, results(time_of(1.0), time_of(2.0, case="M2"), time_of(3.0, case="gone")))
    lines = list(running.compared(path, results(time_of(None), time_of(2.0, case="M2"))))
    assert lines[0].endswith("2 values changed, 1 did not.")
    assert lines[1:] == ["  M1, time, Roller, predicted: 1 -> none", "  gone, time, Roller, predicted: 3 -> none"]


def test_a_processor_here_is_measured_and_any_other_predicted():
    suite = fake(time_of(1.0), measure=lambda _: iter([time_of(2.0, MEASURED)]))
    here, there = (running.run_suite(suite, Request(load_spec(name))) for name in ("cpu", "cpu-avx512"))
    assert [v.kind for v in (*here.values, *there.values)] == [MEASURED, PREDICTED]


def test_a_run_without_cases_or_measurements_is_refused():
    with pytest.raises(RollerError, match=r"fake: expected cases, got none that match 'Z\*'"):
        running.run_suite(fake(), Request(V100, pattern="Z*"))
    with pytest.raises(RollerError, match="expected a device to predict, got this machine's processor"):
        running.run_suite(fake(time_of(1.0)), Request(load_spec("cpu")))


# Files that are there already.

UNREADABLE = (
    "{bad", "", "[]", "{}", '{"format": "roller benchmark", "version": 1, "run": {}, "values": [{"case": ["x"]}]}',
    '{"format": "roller benchmark", "version": 1, "run": {}, "values": [{"case": "a", "quantity": "time", "series": "s"'
    ', "value": "abc", "unit": "s", "kind": "measured"}]}',
)  # fmt: skip


@pytest.mark.parametrize("text", UNREADABLE)
def test_an_earlier_run_that_cannot_be_read_costs_no_new_run(tmp_path, capsys, text):
    request = Request(load_spec("v100"), pattern="M1", folder=tmp_path)
    suite = SUITES["small"]
    path = stem_of(suite, request).with_suffix(".json")
    path.write_text(text)
    finish(suite, request, run_suite(suite, request))
    assert read(path).values and path.with_suffix(".md").is_file()
    assert "The earlier run cannot be read" in " ".join(capsys.readouterr().out.split())


def test_what_an_earlier_run_is_called_reaches_no_terminal_raw(tmp_path, capsys):
    request = Request(load_spec("v100"), pattern="M1", folder=tmp_path)
    suite = SUITES["small"]
    found = run_suite(suite, request)
    old = Results(
        {**found.head, "date": "\x1b]0;title\x07", "revision": "\x1b[31m"}, (found.values[0]._replace(case="\x1b[2Jx"),)
    )
    write(stem_of(suite, request).with_suffix(".json"), old)
    finish(suite, request, found)
    assert "\x1b" not in capsys.readouterr().out


def test_specifications_of_ones_own_have_files_of_their_own(tmp_path):
    own = load_spec("v100").with_overrides({"units": 40})
    stems = {stem_of(SUITES["small"], Request(spec, folder=tmp_path)).name for spec in (load_spec("v100"), own)}
    assert "small-v100" in stems and len(stems) == 2


@pytest.mark.parametrize("name", sorted(set(SUITES) - {"training", "whatif", "skyline", "forecast", "models"}))
def test_a_filter_that_matches_nothing_is_refused(tmp_path, name):
    with pytest.raises(RollerError, match="expected cases, got none"):
        run_suite(SUITES[name], Request(load_spec("v100"), True, "no_such_case", folder=tmp_path))


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RollerError, match="--out: expected a folder"):
        check_folder(tmp_path / "file")
