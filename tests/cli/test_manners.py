"""How the command line behaves whatever the verb: verbosity, widths, colours, exit codes, interrupts, completion."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest

import roller
from roller.cli import construct as construct_verb
from roller.cli.lazy_commands import VERBS
from roller.errors import RollerWarning
from roller.ops import REGISTRY
from roller.runtime.candidate_records import STATUSES

MATMUL = "matmul(m=64, n=96, k=32)"


def process(*words, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "roller.cli.main", *words], capture_output=True, text=True, timeout=300,
        env={**environment, **variables},
    )  # fmt: skip


@pytest.mark.parametrize("verb", [v for v, home in VERBS.items() if home.endswith("_command")])
def test_every_verb_takes_quiet_and_verbose(cli, verb):
    code, out, _ = cli(verb, "--help")
    assert code == 0 and "--quiet" in out and "--verbose" in out


def test_what_is_under_way_is_told_unless_it_is_not_wanted(cli, monkeypatch):
    def work(*arguments, **options):
        logging.getLogger("roller.some.part").info("building")
        logging.getLogger("roller.some.part").debug("detail")
        return []

    monkeypatch.setattr(roller, "construct", work)
    told, all_told = "roller: building\n", "roller: building\nroller: detail\n"
    for words, err in (((), told), (("-q",), ""), (("--verbose",), all_told)):
        assert cli("construct", MATMUL, "-d", "v100", *words)[2] == err
        assert cli(*words, "construct", MATMUL, "-d", "v100")[2] == err, "before the verb too"
    assert cli("construct", MATMUL, "-d", "v100", "-q", "-v")[0] == 2


def test_quiet_leaves_results_and_errors(cli, monkeypatch):
    import warnings

    odd = RollerWarning("worked around")
    monkeypatch.setattr(construct_verb, "size_limit_notes", lambda *_: warnings.warn(odd, stacklevel=1) or [])
    quiet = cli("-q", "construct", MATMUL, "-d", "v100", "--json")
    assert quiet[0] == 0 and quiet[2] == "" and json.loads(quiet[1])["candidates"]
    assert cli("-q", "construct", "matmull(1)", "-d", "v100")[2].startswith("roller: error: ")


def test_verbose_errors_come_with_their_trace(cli):
    plain, loud = (cli(*words, "construct", "matmull(1)") for words in ((), ("-v",)))
    assert "Traceback" not in plain[2] and "Traceback" in loud[2] and loud[2].endswith(plain[2])


@pytest.mark.parametrize("words", [("devices",), *(("construct", MATMUL, "-d", d) for d in ("h200", "cpu"))])
@pytest.mark.parametrize("columns", [60, 80])
def test_tables_fit_the_terminal_and_lose_nothing(cli, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = cli(*words)
    out = out.partition("names, for")[0]  # which are copied, and not broken
    assert code == 0 and max(map(len, out.splitlines())) <= columns
    monkeypatch.delenv("COLUMNS")
    wide = cli(*words)[1].partition("names, for")[0]
    shown = {word.rstrip(":") for word in out.split()}
    wanted = {word.rstrip(":") for word in wide.split()}
    missing = [w for w in wanted - shown if w.strip("─") and len(w) < columns // 2]
    assert not missing, "every word of the wide table is in the narrow one"


def test_every_status_is_explained_where_it_stands(cli):
    code, out, _ = cli("construct", MATMUL, "-d", "v100", "-k", "2")
    assert code == 0 and "status: constructed = not built" in out
    assert all(text and not text.endswith(".") for text in STATUSES.values())


def test_an_interrupt_of_any_verb_is_one_line_and_130(cli, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(roller, "construct", stop)
    code, out, err = cli("construct", MATMUL, "-d", "v100")
    assert (code, out, err) == (130, "", "\nroller: interrupted.\n")


def test_operators_are_listed_with_arguments_and_steps_of_epilogues(cli):
    code, out, _ = cli("--list-operators")
    assert code == 0 and max(map(len, out.splitlines())) <= 100
    for name in REGISTRY:
        assert f"\n  {name}(" in out
    for word in ("transpose_b=False", "dtype='float32'", "epilogue=()", "leaky_relu(x)", "clip(x, y)", "bias ("):
        assert word in " ".join(out.split())


def test_the_environment_is_told_without_the_users_folders(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "kernels"))
    code, out, _ = cli("env", "--json")
    found = json.loads(out)
    assert code == 0 and found["roller"] == roller.__version__ and found["packages"]["numpy"]
    assert found["cache"]["folder"] == "~/kernels" and found["processor"]["cores"] >= 1
    assert str(tmp_path) not in out
    text = cli("env")[1]
    assert str(tmp_path) not in text and "compilers:\n  C: " in text


def test_a_broken_part_of_the_environment_does_not_hide_the_rest(cli, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("PATH", "")
    code, out, _ = cli("env", "--json")
    found = json.loads(out)
    assert code == 0 and found["compilers"]["C"] is None and {"folder", "error"} & set(found["cache"])


@pytest.mark.slow
def test_colours_are_left_out_where_that_is_asked():
    colours = process("--help", FORCE_COLOR="1", TERM="xterm-256color").stdout
    colour = re.compile(r"\x1b\[(\d+;)*[39]\d")
    assert colour.search(colours)
    plain = process("--help", NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert not colour.search(plain) and "compile-model" in plain


@pytest.mark.slow
def test_shells_can_complete_verbs_and_options():
    done = process(_ROLLER_COMPLETE="complete_bash", COMP_WORDS="roller comp", COMP_CWORD="1")
    assert done.stdout.split() == ["compile", "compile-model", "compare"], done.stderr
    # Told the shell, as no shell may be among the processes that run the tests.
    script = process("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout
    assert "_ROLLER_COMPLETE" in script or "complete" in script


@pytest.mark.slow
def test_a_pipe_sees_what_is_under_way_on_standard_error_alone(tmp_path):
    done = process("compile", "matmul(16, 16, 16)", "-k", "2", "--json", "--no-cache")
    assert json.loads(done.stdout)["best"] and "roller: matmul: building 2 candidates\n" in done.stderr
    quiet = process("compile", "matmul(16, 16, 16)", "-k", "2", "--json", "--no-cache", "--quiet")
    assert quiet.stderr == "" and json.loads(quiet.stdout)["best"]


@pytest.mark.parametrize(
    ("verb", "option"), [("memory", "--snapshot"), ("sweep", "--csv"), ("whatif", "--perfetto"), ("record", "--out")]
)
def test_no_verb_writes_over_what_it_reads(cli, tmp_path, verb, option):
    file = tmp_path / "train.py"
    file.write_text("pass")
    words = [verb, file, option, tmp_path / "." / "train.py", *(["--do", "amp"] if verb == "whatif" else [])]
    code, out, err = cli(*words)
    assert code == 2 and not out and "expected a file of its own, got that of train.py, which is read" in err
    assert file.read_text() == "pass"
