"""Files of suites: damaged earlier runs, names from files, specifications of one's own, folders, and empty filters."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.suites.registry import SUITES
from benchmarks.suites.running import check_folder, finish, run_suite, stem_of
from benchmarks.suites.suite import Request
from benchmarks.suites.values import Results, read, write
from roller.errors import RollerError
from roller.hardware import load_spec

DAMAGED = (
    "{bad", "", "[]", "{}", '{"format": "roller benchmark", "version": 1, "run": {}, "values": [{"case": ["x"]}]}',
    '{"format": "roller benchmark", "version": 1, "run": {}, "values": [{"case": "a", "quantity": "time", "series": "s"'
    ', "value": "abc", "unit": "s", "kind": "measured"}]}',
)  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
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
