"""No name out of a file is obeyed by the terminal that shows it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings

import onnx
import pytest
from onnx import helper as h
from rich.table import Table

from roller.cli.screen import console
from roller.cli.terminal_escaping import PrintableStream, escape_terminal_output, redirect_stdout_to_stderr
from roller.errors import ModelError, RollerWarning, printable
from roller.runtime.bundle_command_helpers import print_progress
from roller_runtime.core.display import one_line_repr
from tests.offenders import every

#: Clears the screen, sets the title, fills the clipboard, does both by C1 controls, turns the direction of text, rings.
ORDERS = (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x1b]52;c;eA==\x1b\\",
    "\x9b2J",
    "\x9d0;t\x9c",
    "\u202eabc",
    "\x07",
    "\r",
    "\x7f",
)


@every("order", ORDERS)
def test_orders_are_shown(order):
    text = printable(f"a\n\tb{order}c")
    assert (
        text.startswith("a\n\tb\\")
        and text.endswith("c")
        and not set(order) & set("\x1b\x9b\x9d\x9c\u202e\x07\r\x7f") & set(text)
    )


@every("text", ["é 日本 🎉", "a\nb\tc", "\\x1b", ""])
def test_what_is_no_order_stays(text):
    assert printable(text) == text


@every("order", ORDERS)
def test_errors_warnings_reprs_and_bundles_have_none(order, capsys):
    print_progress(f"name{order}")
    texts = (str(ModelError(f"m{order}: no")), str(RollerWarning(order)), one_line_repr("Plan", order))
    for text in (*texts, capsys.readouterr().out):
        assert text == printable(text)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.warn(f"a{order}", RollerWarning, stacklevel=1)
    assert str(told[0].message) == printable(str(told[0].message))


def test_a_path_that_no_encoding_has_is_printed():
    assert printable("a\udcff") == "a\\udcff"


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_colours_and_bars_alone(monkeypatch):
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with escape_terminal_output():
        for stream in (sys.stdout, sys.stderr):
            stream.write("\x1b[1;31mred\x1b[0m \x1b[1A\x1b[2K\x1b[2J\x1b]0;t\x07")
    assert out.getvalue() == "\x1b[1;31mred\x1b[0m \\x1b[1A\\x1b[2K\\x1b[2J\\x1b]0;t\\x07"
    assert err.getvalue() == "\x1b[1;31mred\x1b[0m \x1b[1A\x1b[2K\\x1b[2J\\x1b]0;t\\x07"
    assert sys.stdout is out and sys.stderr is err


def test_tables_have_none(capsys):
    with escape_terminal_output():
        table = Table("name")
        table.add_row("a\x1b[2J")
        console().print(table)
        console().print("b\x1b[2J")
    assert "\x1b" not in (out := capsys.readouterr().out) and out.count("\\x1b[2J") == 2


def test_a_stream_is_the_one_behind_it():
    stream = PrintableStream(behind := io.StringIO(), bars=False)
    stream.writelines(["a", "\x1b[31m"])
    assert (behind.getvalue(), stream.isatty(), stream.write("abc\x07")) == ("a\\x1b[31m", False, 4)


@pytest.mark.slow
def test_names_of_a_model_are_shown(tmp_path, cli):
    order = "\x1b[2J\x1b]0;title\x07"
    i, o = (h.make_tensor_value_info(n + order, 1, [2, 3]) for n in "io")
    node = h.make_node("Relu", [i.name], [o.name], name="n" + order)
    graph = h.make_graph([node], "g" + order, [i], [o])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    for words in (
        ["compile-model", "--list-unsupported", tmp_path / "m.onnx"],
        ["compile-model", tmp_path / "m.onnx", "--out", tmp_path / "o", "--deterministic"],
        ["run-model", tmp_path / "o"],
        ["run-model", tmp_path / "o", "--json"],
        ["check", tmp_path / "m.onnx"],
        ["lint", tmp_path / "m.onnx", "--device", "v100"],
        ["run-model", tmp_path / order],
    ):
        code, out, err = cli(*words)
        assert "\x1b" not in out + err and "\x07" not in out + err, (words, code)


def test_prints_of_the_users_code_stay_out_of_the_result(capfd):
    with redirect_stdout_to_stderr():
        sys.stdout.write("of Python\n")
        os.write(1, b"of C\n")
        subprocess.run(["echo", "of a process"], check=True)
    sys.stdout.write("the result\n")
    out, err = capfd.readouterr()
    assert out == "the result\n" and sorted(err.splitlines()) == ["of C", "of Python", "of a process"]
