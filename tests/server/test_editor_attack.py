"""A client that sends anything in any order: the server answers, shows figures at their lines, leaves nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pygls")

from roller.insight.step_profile.earlier_revision_and_moved_lines import split_source_lines
from tests.server.entries import NET
from tests.server.processes import alive, descendants_of, wait_until
from tests.server.test_editor_lifetime import Conversation

pytestmark = [
    pytest.mark.slow,  # each starts a server, and a process that imports PyTorch
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc"),
]
_STEPS = 80
_JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 3.5, 1e400, 10**30, "", "x", [], {}, [None], {"a": 1}, "🙂", "h100", "9xa100", "99999xa100",
    ["a100"] * 40,
)  # fmt: skip
_TEXTS = (
    NET, NET.replace("\n", "\r\n"), NET.replace("\n", "\r"), "", "\ufeff" + NET, NET[:200], "\n" * 50 + NET,
    "x" * 100_000, "\ud83d", NET.replace("self", "sélf🙂"), "\x0c\u2028\x1d", "(" * 10_000,
    f"def input_provider(batch_size={'9' * 6000}): ...",
)  # fmt: skip
_SETTINGS = ("entry", "device", "batch", "amp", "checkpoint", "live", "runScripts", "arguments", "patience", "unknown")
_COMMANDS = ("profile", "drill", "setBatch", "setDevice", "setLive", "showPage")
_SOUND = {
    "entry": "", "device": "v100", "batch": 8, "amp": "fp32", "checkpoint": False, "live": True, "runScripts": False,
    "arguments": [], "patience": 60,
}  # fmt: skip


class Attacker:
    """Draws messages by a seed."""

    def __init__(self, seed: int, folder: Path, outside: Path) -> None:
        self.drawn = random.Random(seed)
        self.folder, self.outside, self.entry = folder, outside, folder / "train.py"
        for path in (self.entry, folder / "a b%20π.py", outside / "one.py", outside / "link.py"):
            path.write_text(NET)
        (folder / "empty.py").touch()
        (folder / "script.py").write_text(f"open({str(outside / 'ran')!r}, 'w')\n")
        (folder / "folder.py").mkdir()
        (folder / "link.py").symlink_to(outside / "link.py")
        (folder / "loop.py").symlink_to("loop.py")
        os.mkfifo(folder / "fifo.py")
        names = (
            "train.py",
            "a b%20π.py",
            "empty.py",
            "script.py",
            "absent.py",
            "folder.py",
            "link.py",
            "loop.py",
            "fifo.py",
        )
        self.uris = [*((folder / name).as_uri() for name in names)]
        self.uris += [
            folder.as_uri(), (outside / "one.py").as_uri(), str(self.entry),
            self.entry.as_uri().replace("train", "%74rain"),
            "untitled:U-1", "file:///etc/passwd", f"file:///{'x' * 5000}", "", "file:", "http://x/y.py", "file:///%00.py",
            "file:///%FF.py", "file:///a%2F..%2Fb.py", "file://other/share/a.py",
        ]  # fmt: skip

    def message(self, last: int) -> tuple[str, Any, bool]:
        """Return method, parameters, and whether it is a request."""
        draw = self.drawn
        uri = draw.choice(self.uris[:2] if draw.random() < 0.4 else self.uris)
        document, kind = {"uri": uri}, draw.randrange(11)
        text = draw.choice(_TEXTS)
        if kind == 0:
            item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
            return "textDocument/didOpen", {"textDocument": item}, False
        if kind == 1:
            change = {"text": text, **({"range": self._range()} if draw.random() < 0.5 else {})}
            version = {"uri": uri, "version": draw.choice((2, -1, 7))}
            changes = draw.choice(([change], [], [change, change]))
            return "textDocument/didChange", {"textDocument": version, "contentChanges": changes}, False
        if kind in (2, 3):
            return f"textDocument/did{('Close', 'Save')[kind - 2]}", {"textDocument": document}, False
        if kind == 4:
            given = (
                [draw.choice(_JUNK) for _ in range(3)]
                if draw.random() < 0.2
                else [uri, draw.choice(_JUNK), draw.choice(_JUNK)]
            )
            command = {"command": f"roller.{draw.choice(_COMMANDS)}", "arguments": given[: draw.randrange(4)]}
            return "workspace/executeCommand", command, True
        if kind == 5:
            return "workspace/executeCommand", {"command": "roller.profile", "arguments": [uri]}, True
        if kind == 6:
            method = draw.choice(("hover", "codeLens", "inlayHint"))
            return f"textDocument/{method}", {"textDocument": document, "range": self._range(), **self._at()}, True
        if kind == 7:
            settings = draw.choice(({draw.choice(_SETTINGS): draw.choice(_JUNK)}, draw.choice(_JUNK), _SOUND))
            return "workspace/didChangeConfiguration", {"settings": {"roller": settings}}, False
        if kind == 8:
            return "roller/profile", draw.choice(({"uri": uri}, {"uri": 7}, None, [], {"uri": uri, "wait": 1})), True
        if kind == 9:
            return draw.choice(("roller/status", "roller/line")), {"uri": uri, "line": draw.choice(_JUNK)}, True
        return "$/cancelRequest", {"id": draw.choice((last, 0, -1, 10**9, "x"))}, False

    def _at(self) -> dict[str, Any]:
        line, character = self.drawn.choice((0, 5, 12, 10**6, 2**31 - 1)), self.drawn.choice((0, 3, 80, 2**31 - 1))
        return {"position": {"line": line, "character": character}}

    def _range(self) -> dict[str, Any]:
        return {"start": self._at()["position"], "end": self._at()["position"]}

    def change_the_file(self) -> None:
        """Rename, remove, replace or rewrite the entry file."""
        kind = self.drawn.randrange(5)
        if kind == 0 and self.entry.exists():
            self.entry.rename(self.folder / "moved.py")
            return
        self.entry.unlink(missing_ok=True)
        if kind == 2:
            self.entry.symlink_to(self.outside / "link.py")
        elif kind > 2:
            self.entry.write_text(self.drawn.choice(_TEXTS[:8]))


@pytest.mark.parametrize("seed", range(4))
def test_anything_in_any_order(tmp_path: Path, seed: int) -> None:
    folder, outside = tmp_path / "a b" / "project", tmp_path / "outside"
    folder.mkdir(parents=True)
    outside.mkdir()
    attacker = Attacker(seed, folder, outside)
    one = Conversation(folder, workspace={"codeLens": {"refreshSupport": True}}, window={"workDoneProgress": True})
    asked: dict[int, str] = {}
    below: set[int] = set()
    try:
        for number in range(_STEPS):
            method, params, is_request = attacker.message(one.count)
            if is_request:
                asked[one.send_request(method, params)] = method
            else:
                one.tell(method, params)
            if number % 8 == 7:
                attacker.change_the_file()
                answer = one.ask("roller/status", {"uri": attacker.uris[0]})
                assert ("result" in answer) != ("error" in answer)
        _is_sound_again(one, attacker)
        below = descendants_of(one.server.pid)
        assert one.ask("shutdown", None)["result"] is None
        late = one.ask("roller/status", {"uri": attacker.uris[0]})
        assert "expected exit after shutdown" in late["error"]["message"]
        one.tell("exit", None)
        assert one.server.wait(120) == 0
    finally:
        one.close()
    answers = {x["id"]: x for x in one.messages if "id" in x and "method" not in x}
    assert {number: method for number, method in asked.items() if number not in answers} == {}
    for answer in answers.values():
        assert "Traceback" not in json.dumps(answer)
        if "error" in answer:
            assert "expected" in answer["error"]["message"] or "Cancelled" in answer["error"]["message"], answer
    assert not (outside / "ran").exists(), "a script ran that was not allowed to"
    assert (outside / "one.py").read_text() == (outside / "link.py").read_text() == NET
    wait_until(lambda: not alive(below), 60.0)


def _is_sound_again(one: Conversation, attacker: Attacker) -> None:
    """Profile the entry file as if nothing had been, and find all figures at their lines."""
    attacker.entry.unlink(missing_ok=True)
    attacker.entry.write_text(NET)
    shutil.rmtree(attacker.folder / "__pycache__", ignore_errors=True)
    document = {"uri": attacker.uris[0]}
    one.tell("workspace/didChangeConfiguration", {"settings": {"roller": _SOUND}})
    one.tell("textDocument/didClose", {"textDocument": document})
    moved = {**document, "languageId": "python", "version": 9, "text": f"\n\n{NET}"}
    one.tell("textDocument/didOpen", {"textDocument": moved})
    found = one.profile("train.py")
    assert found["status"] == "ready", found["error"]
    lines = {row["line"]: row for row in found["results"]["profile"]["data"]["lines"]}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 10**6, "character": 0}}
    inlays = one.ask("textDocument/inlayHint", {"textDocument": document, "range": whole})["result"]
    assert {hint["position"]["line"] - 1 for hint in inlays} == {
        n for n, row in lines.items() if row["wall_s"] or row["held_bytes"] or row["registered_bytes"]
    }
    for hint in inlays:
        row = lines[hint["position"]["line"] - 1]
        assert (hint["data"]["wall_s"], hint["data"]["held_bytes"]) == (row["wall_s"], row["held_bytes"])
        assert hint["position"]["character"] == len(split_source_lines(NET)[row["line"] - 1].encode("utf-16-le")) // 2
