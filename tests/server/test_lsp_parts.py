"""Parts of the language server without a server: settings, positions, moved lines, and texts."""

from __future__ import annotations

import ast
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pygls")

from lsprotocol import types

from roller.insight.step_profile.earlier_revision_and_moved_lines import moved_line_names, split_source_lines
from roller.server.lsp.batch_size_edit import NoBatchError, batch_edit, find_or_choose_batch_literal
from roller.server.lsp.diagnostics import _remedies_text
from roller.server.lsp.language_server import make_server
from roller.server.lsp.number_texts import markdown_code, size_text, time_text
from roller.server.lsp.positions import length_in_units, map_lines, position_at, range_of_line
from roller.server.lsp.settings import Settings, SettingsError, parse_device_setting
from tests.offenders import every

_CODECS = {"utf-8": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_TEXT = st.text("aπß🙂\u2028\x0c\x1d\r\n", max_size=12)
_LINES = st.lists(st.sampled_from("abcdefgh"), max_size=12)


@given(before=_TEXT, encoding=st.sampled_from(sorted(_CODECS)), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_the_edit_of_a_batch_there_and_back(before: str, encoding: str, end: str) -> None:
    inner = before.replace("\r", "").replace("\n", "")
    text = f"A = {inner!r}{end}B = 1{end}def input_provider(name={inner!r}, batch_size=16):{end}    return 1{end}"
    changed = _applied(text, _edit(text, 128, encoding), encoding)
    assert changed == text.replace("batch_size=16", "batch_size=128")
    assert _applied(changed, _edit(changed, 16, encoding), encoding) == text


def _edit(text: str, batch: int, encoding: str) -> types.TextEdit:
    made = batch_edit("file:///a.py", 3, text, find_or_choose_batch_literal("a.py", text), batch, encoding, True)
    (change,) = made.document_changes or ()
    assert isinstance(change, types.TextDocumentEdit)
    assert change.text_document.version == 3
    (edit,) = change.edits
    assert isinstance(edit, types.TextEdit)
    return edit


def _applied(text: str, edit: types.TextEdit, encoding: str) -> str:
    """Apply an edit as a client does, which knows units alone."""
    lines = text.replace("\r\n", "\n\0").replace("\r", "\n\1").split("\n")
    assert edit.range.start.line == edit.range.end.line
    line = lines[edit.range.start.line]
    mark = line[:1] if line[:1] in ("\0", "\1") else ""
    size = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[encoding]
    data = line.removeprefix(mark).encode(_CODECS[encoding])
    start, stop = size * edit.range.start.character, size * edit.range.end.character
    new = data[:start] + edit.new_text.encode(_CODECS[encoding]) + data[stop:]
    lines[edit.range.start.line] = mark + new.decode(_CODECS[encoding])
    return "\n".join(lines).replace("\n\0", "\r\n").replace("\n\1", "\r")


def test_clients_without_versions_get_the_same_edit() -> None:
    text = "def input_provider(batch_size=16): ..."
    made = batch_edit("file:///a.py", None, text, find_or_choose_batch_literal("a.py", text), 8, "utf-16", False)
    assert made.document_changes is None
    assert made.changes == {"file:///a.py": [types.TextEdit(types.Range(_at(30), _at(32)), "8")]}


def _at(character: int) -> types.Position:
    return types.Position(0, character)


def test_candidates_are_named_and_chosen() -> None:
    text = "SIZE = 4\nOTHER = 5\ndef input_provider(batch_size=SIZE * 2): ..."
    with pytest.raises(NoBatchError, match=r"a\.py:3: .*Or name one of SIZE, OTHER\.") as refused:
        find_or_choose_batch_literal("a.py", text)
    assert [one.name for one in refused.value.found.candidates] == ["SIZE", "OTHER"]
    assert find_or_choose_batch_literal("a.py", text, "OTHER").value == 5
    with pytest.raises(NoBatchError):
        find_or_choose_batch_literal("a.py", text, "x")


@given(text=_TEXT, encoding=st.sampled_from(sorted(_CODECS)))
def test_positions_count_units_from_the_last_end_of_a_line(text: str, encoding: str) -> None:
    for offset in range(len(text) + 1):
        if text[offset - 1 : offset + 1] == "\r\n":
            continue  # no place: within an end
        found = position_at(text, offset, encoding)
        lines = split_source_lines(text[:offset])
        assert found.line == len(lines) - 1
        size = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[encoding]
        assert found.character * size == len(lines[-1].encode(_CODECS[encoding]))


@given(text=st.text("a \n\r\x0c\u2028\x1d#", max_size=20))
def test_lines_are_those_of_python(text: str) -> None:
    source = f"#{text}\nX"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    last = tree.body[-1]
    assert (
        split_source_lines(source)[last.lineno - 1 :][0].strip().startswith("X")
        or split_source_lines(source)[-1] == "X"
    )
    assert last.lineno <= len(split_source_lines(source))


@given(old=_LINES, new=_LINES)
def test_moved_lines_are_equal_or_marked_as_changed(old: list[str], new: list[str]) -> None:
    placed = map_lines("\n".join(old), "\n".join(new))
    lines = split_source_lines("\n".join(old)), split_source_lines("\n".join(new))
    for before, at in placed.items():
        assert (lines[0][before - 1] == lines[1][at.line - 1]) is not at.is_changed
    found = [at.line for at in placed.values()]
    assert found == sorted(set(found))
    assert [*moved_line_names("f", "\n".join(old), "\n".join(new))] == [
        (f"f:{before}", f"f:{at.line}") for before, at in placed.items()
    ]
    if old == new:
        assert not any(at.is_changed for at in placed.values())
        assert len(placed) == len(lines[0])


def test_lines_between_edits_at_both_ends_keep_their_places_by_those_that_are_there_once() -> None:
    old = [line for n in range(400) for line in (f"x{n} = f()", "", "    return x", "")]
    new = ["import a", *old[:800], "other", *old[800:-1], "b"]
    placed = map_lines("\n".join(old), "\n".join(new))
    assert [placed[n].line for n in (1, 800, 801, 1599)] == [2, 801, 803, 1601]
    assert not any(placed[n].is_changed for n in range(1, 1600))
    assert placed[1600].is_changed


def test_a_range_is_the_text_of_a_line_without_indentation() -> None:
    lines = ["  π🙂", ""]
    assert range_of_line(lines, 1, "utf-16") == types.Range(types.Position(0, 2), types.Position(0, 5))
    assert range_of_line(lines, 1, "utf-8") == types.Range(types.Position(0, 2), types.Position(0, 8))
    for absent in (0, 2, 3, 99):
        assert range_of_line(lines, absent, "utf-16").start.character == 0


def test_half_a_character_has_a_length() -> None:
    assert [length_in_units("\ud800", encoding) for encoding in ("utf-8", "utf-16", "utf-32")] == [3, 1, 1]


@every(
    "data",
    (
        {"device": "h10o"}, {"device": ""}, {"device": ","}, {"device": 7}, {"device": [7]}, {"device": "0xa100"},
        {"device": "/etc/x.yaml"}, {"batch": 0}, {"batch": True}, {"batch": "8"}, {"batch": 1.5}, {"amp": "fp8"},
        {"amp": []}, {"checkpoint": "yes"}, {"live": 1}, {"runScripts": "true"}, {"arguments": "x"},
        {"arguments": [1]}, {"entry": 1}, {"patience": 0}, {"patience": "60"}, {"patience": True}, [], "x", 7,
    ),
)  # fmt: skip
def test_wrong_settings_are_refused(data: Any) -> None:
    with pytest.raises(SettingsError, match="expected"):
        Settings().updated_from_json(data)


def test_settings_are_merged() -> None:
    first = Settings().updated_from_json({"device": "h100,2xa100", "batch": 8.0, "unknown": 1, "amp": None})
    assert first.options.devices == (("h100", 1), ("a100", 2)) == parse_device_setting(["h100", "2xa100", "h100"])
    assert first.options.batch == 8
    second = first.updated_from_json({"live": False, "arguments": ["--epochs", "1"], "runScripts": True})
    assert (second.options, second.is_live, second.arguments) == (first.options, False, ("--epochs", "1"))
    assert second.updated_from_json(None) == second.updated_from_json({}) == second


def test_what_comes_before_initialize_or_after_shutdown_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = make_server().protocol
    sent: list[Any] = []
    monkeypatch.setattr(protocol, "_send_data", sent.append)

    def say(method: str, **more: Any) -> None:
        protocol.handle_message(protocol.structure_message({"jsonrpc": "2.0", "method": method, **more}))

    params = {"command": "roller.profile", "arguments": ["file:///train.py"]}
    say("workspace/executeCommand", id=1, params=params)
    say("textDocument/didSave", params={"textDocument": {"uri": "file:///train.py"}})
    say("initialize", id=2, params={"capabilities": {}, "processId": None, "rootUri": None})
    say("initialize", id=3, params={"capabilities": {}, "processId": None, "rootUri": None})
    protocol._shutdown = True
    say("workspace/executeCommand", id=4, params=params)
    answers = {one.id: one for one in sent}
    codes = {number: one.error.code for number, one in answers.items() if getattr(one, "error", None) is not None}
    assert codes == {1: -32002, 3: -32600, 4: -32600}
    assert "expected initialize first" in answers[1].error.message
    assert "expected exit after shutdown" in answers[4].error.message


def test_a_largest_batch_that_is_unknown_is_not_said_to_be_none() -> None:
    remedies = [{"change": "amp=bf16", "total_bytes": 1 << 30, "fits": True}]
    said = {largest: _remedies_text({"largest": largest, "remedies": remedies}) for largest in (None, 0, 8)}
    assert said[None] == "With amp=bf16: 1 GiB, fits."
    assert said[0].startswith("Not even one sample")
    assert said[8].startswith("The largest batch that fits as it is: 8.")


def test_names_of_a_project_cannot_end_their_code() -> None:
    assert markdown_code("a`b\n\nc") == "`a'b c`"


@given(value=st.floats(0, 1e9))
def test_times_and_sizes_have_units(value: float) -> None:
    assert time_text(value).split()[-1] in ("s", "ms", "µs")
    assert size_text(value).split()[-1] in ("B", "KiB", "MiB", "GiB")


def test_without_the_extra_it_says_what_to_install(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("roller.server.lsp", "pygls"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pygls", None)
    code, said, error = cli("lsp")
    assert (code, said) == (1, "")
    assert "lsp: expected the package pygls" in error
    assert "pip install 'roller[lsp,serve,insight]'" in error
