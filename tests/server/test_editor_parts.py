"""What an editor is told where something goes wrong, without a server or a process that profiles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pygls")
pytest.importorskip("uvicorn")

from lsprotocol import types

from roller.errors import RollerError
from roller.server.lsp import editor_page, editor_session, progress
from roller.server.lsp.diagnostics import hint_text, session_findings
from roller.server.lsp.editor_session import EditorSession
from roller.server.lsp.editor_state import EditorState
from roller.server.lsp.language_server import make_server
from roller.server.lsp.positions import map_lines
from roller.server.lsp.profile_figures import ProfileFigures
from roller.server.lsp.settings import Settings, unknown_settings_message
from roller.server.profile_request import StepOptions
from roller.server.profiling_process_connections import WorkerProcesses

_RESULT = {"type": "result", "stage": "profile", "revision": 1, "options": {}, "data": {}}
_HINT = {
    "change": "AMP() + FusePointwise()", "options": ["amp", "fuse-pointwise"], "delta_s": -2.1e-3, "kind": "predicted",
    "iteration_s": 1.77e-3, "lower_s": 1.5e-3, "upper_s": 2e-3, "upper_bound": False, "rests_on": "assumed",
}  # fmt: skip


def _session(folder: Path, changed: Callable[..., None]) -> EditorSession:
    entry = folder / "train.py"
    entry.write_text("A = 1\n")
    return EditorSession(
        entry, WorkerProcesses(), StepOptions(), arguments=(), is_live=True, patience_s=60.0, changed=changed
    )


def _state(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EditorState, list[Any]]:
    """Return the state of a server whose messages are kept."""
    server = make_server()
    sent: list[Any] = []
    monkeypatch.setattr(server.protocol, "_send_data", sent.append)
    params = types.InitializeParams(types.ClientCapabilities(), root_uri=folder.as_uri())
    data = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": server.protocol._converter.unstructure(params)}
    server.protocol.handle_message(server.protocol.structure_message(data))
    return server.editor, sent


def _published(sent: list[Any]) -> list[Any]:
    return [one.params for one in sent if getattr(one, "method", "") == types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS]


async def _settled(session: EditorSession) -> None:
    for _ in range(500):
        if session.is_settled:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("messages were not taken")


def test_a_profile_that_cannot_be_shown_is_said_and_leaves_no_figures_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = [KeyError("nodes"), SimpleNamespace(), RollerError("profile: expected nodes, got none.")]

    def figures(*_: Any) -> Any:
        found = made.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def talk() -> None:
        session = _session(tmp_path, lambda *_: None)
        monkeypatch.setattr(ProfileFigures, "of", figures)
        session.session._tell(_RESULT)
        await _settled(session)
        (said,) = session_findings(session)
        assert (said.file, said.line, said.severity) == ("train.py", 1, types.DiagnosticSeverity.Error)
        assert "KeyError: 'nodes'" in said.text
        session.session._tell(_RESULT)
        await _settled(session)
        assert (session.figures is not None, session.figures_error) == (True, "")
        session.session._tell(_RESULT)
        await _settled(session)
        assert session.figures is None
        assert "expected nodes, got none" in session_findings(session)[0].text
        await session.close()

    asyncio.run(talk())


def test_messages_after_one_that_goes_wrong_are_taken(tmp_path: Path) -> None:
    told: list[Any] = []

    def changed(session: EditorSession, message: Any) -> None:
        told.append(message["stage"])
        if message["stage"] == "curve":
            raise ValueError("wrong")

    async def talk() -> None:
        session = _session(tmp_path, changed)
        for stage in ("curve", "hints"):
            session.session._tell({**_RESULT, "stage": stage, "data": {"of": stage}})
        session.session._tell({"type": "result"})  # no message of the session at all
        session.session._tell({**_RESULT, "stage": "fit", "data": {"of": "fit"}})
        await _settled(session)
        assert session.result("fit") == {"of": "fit"}
        assert not session._following.done()
        await session.close()
        assert session._following.done()
        assert session._following.cancelled()

    asyncio.run(talk())
    assert told == ["curve", "hints", "fit"]


def test_places_are_those_of_the_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor_session, "hash", lambda text: 1, raising=False)  # two texts of one hash

    async def talk() -> None:
        session = _session(tmp_path, lambda *_: None)
        for new in ("a\nb", "b\na"):
            assert session.map_lines_cached("a\nb", new) == map_lines("a\nb", new)
        assert map_lines("a\nb", "a\nb") != map_lines("a\nb", "b\na")
        await session.close()

    asyncio.run(talk())


def test_who_waits_for_a_profile_is_answered_when_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk() -> None:
        state, _ = _state(tmp_path, monkeypatch)
        session = _session(tmp_path, state._take)
        state.sessions[session.project.entry] = session
        session.session.state.status = "running"
        waiting = asyncio.ensure_future(state.snapshot("", True))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await state.close()
        answer = await asyncio.wait_for(waiting, 5)
        assert answer["entry"] == "train.py"

    asyncio.run(talk())


def test_the_same_diagnostics_are_published_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        state, sent = _state(tmp_path, monkeypatch)
        session = _session(tmp_path, state._take)
        head = {**session.session._state_header(), "type": "state"}
        texts = ["train.py:1: wrong.", "train.py:1: wrong.", "train.py:1: other.", None, None]
        for text in texts:
            error = None if text is None else {"text": text, "problems": [], "output": []}
            session.session.state.error = error
            session.session._tell({**head, "error": error})
            await _settled(session)
        found = [[one.message for one in params.diagnostics] for params in _published(sent)]
        assert found == [["train.py:1: wrong."], ["train.py:1: other."], []]
        await session.close()

    asyncio.run(talk())


def test_a_page_that_nobody_serves_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise OSError("no more")

    async def talk() -> None:
        state, _ = _state(tmp_path, monkeypatch)
        session = _session(tmp_path, state._take)
        with monkeypatch.context() as broken:
            broken.setattr(editor_page._ServerWithoutSignals, "serve", fails)
            with pytest.raises(RollerError, match=r"expected a page at 127\.0\.0\.1:\d+, got 'OSError: no more'"):
                await state.start_or_get_page(session)
        served = await state.start_or_get_page(session)
        assert served.is_served
        assert await state.start_or_get_page(session) is served
        await state.close()
        await session.close()

    asyncio.run(talk())


def test_progress_is_told_by_its_stage_and_not_too_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    server: Any = SimpleNamespace(
        client_capabilities=types.ClientCapabilities(window=types.WindowClientCapabilities(work_done_progress=True)),
        work_done_progress=SimpleNamespace(
            create=lambda token, begun: begun(), begin=lambda token, value: told.append(value),
            report=lambda token, value: told.append(value), end=lambda token, value: told.append(value),
        ),
    )  # fmt: skip
    monkeypatch.setattr(progress, "_EVERY_S", 0.05)
    session: Any = SimpleNamespace(project=SimpleNamespace(entry_name="train.py"))

    async def talk() -> None:
        reports = progress.ProgressReports(server)
        reports.take(session, {"type": "state", "status": "running"})
        for done in range(100):
            reports.take(session, {"type": "progress", "progress": ("trace", done, 0)})
        await asyncio.sleep(0.12)
        reports.take(session, {"type": "progress", "progress": ("price", 26, 536)})
        reports.take(session, {"type": "progress", "progress": ("price", 27, 536)})
        reports.take(session, {"type": "state", "status": "ready"})
        await asyncio.sleep(0.12)

    asyncio.run(talk())
    assert [one.kind for one in told] == ["begin", "report", "report", "report", "end"]
    assert [one.message for one in told[1:4]] == [
        "tracing: 0 operators", "tracing: 99 operators", "pricing: 26 of 536 operators",
    ]  # fmt: skip
    assert all(one.percentage is None for one in told[:4])


def test_a_hint_says_what_its_times_rest_on_as_the_page_does() -> None:
    words = "amp, fuse-pointwise: saves 2.1 ms; 1.77 ms a step (1.5 ms to 2 ms), predicted, rests on assumed times."
    assert hint_text(_HINT) == words
    assert hint_text({**_HINT, "options": [], "upper_bound": True, "rests_on": "predicted"}) == (
        "AMP() + FusePointwise(): saves 2.1 ms; 1.77 ms a step (1.5 ms to 2 ms), predicted; upper bound."
    )


def test_settings_that_are_unknown_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, sent = _state(tmp_path, monkeypatch)
    state.configure({"devcie": "h100", "batch": 8})
    asyncio.run(state.read_configuration())
    (said,) = [one.params for one in sent if getattr(one, "method", "") == types.WINDOW_SHOW_MESSAGE]
    assert said.type == types.MessageType.Warning
    assert "roller.devcie: expected a setting" in said.message
    assert "did you mean 'device'" in said.message
    assert state.settings.options.batch == 8  # the others hold
    properties = re.findall(r'"roller\.(\w+)": \{', Path("editors/vscode/package.json").read_text("utf-8"))
    assert len(properties) > 8
    assert unknown_settings_message(dict.fromkeys(properties, None)) == ""
    assert unknown_settings_message({"\x1b[2J" + "x" * 999: 1, 7: 1}).count("expected") == 2
    assert "\x1b" not in unknown_settings_message({"\x1b[2J": 1})
    assert Settings().updated_from_json({"devcie": 1}) == Settings()
