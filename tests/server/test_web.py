"""The page's server under attack: whoever has not its address gets nothing, and nobody stops it for others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
websockets = pytest.importorskip("websockets")

from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402 - after what skips

from roller.server.check_client_messages import LARGEST_MESSAGE  # noqa: E402
from roller.server.live_profile_session import Session  # noqa: E402
from roller.server.page_server import MOST_CLIENTS, OTHER_VERSION, REFUSED, TOO_MANY, TOO_SLOW, PageServer  # noqa: E402
from roller.server.profiling_process_connections import WorkerProcesses  # noqa: E402
from roller.server.project_files import Project  # noqa: E402

_HELLO = json.dumps({"type": "hello", "version": 1})
_DEVICE = {"name": "a100", "description": "", "capacity_bytes": 1}


class Site:
    """A page that is served, of a session that profiles nothing."""

    def __init__(self, page: PageServer, port: int) -> None:
        self.page, self.port, self.host = page, port, f"127.0.0.1:{port}"

    def connect(self, token: str | None = None, origin: str | None = "", **options: Any) -> Any:
        token = self.page.token if token is None else token
        origin = f"http://{self.host}" if origin == "" else origin
        return websockets.connect(
            f"ws://{self.host}/socket?token={token}", origin=origin, proxy=None, max_size=None, **options
        )

    async def get(self, path: str, host: str = "", method: str = "GET") -> tuple[int, str]:
        """Ask as no browser would: the path goes as it is."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host or self.host}\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode(errors="replace")
        writer.close()
        await writer.wait_closed()
        return int(answer.split()[1]), answer

    async def opened(self, **options: Any) -> Any:
        """Return a conversation after both sides said hello."""
        found = await self.connect(**options)
        await found.send(_HELLO)
        assert json.loads(await found.recv())["type"] == "hello"
        assert json.loads(await found.recv())["type"] == "state"
        return found


def _attack(folder: Path, act: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
    (folder / "project").mkdir()
    (folder / "project" / "pyproject.toml").write_text("")
    entry = folder / "project" / "train.py"
    entry.write_text("def input_provider(batch_size=16): ...\n")
    (folder / "secret.py").write_text("SECRET = 1\n")

    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        session = Session(Project(entry), WorkerProcesses(), is_live=False)
        page = PageServer(session, (f"127.0.0.1:{port}", f"localhost:{port}"), [_DEVICE], owns_session=False)
        config = uvicorn.Config(
            page.app, log_config=None, ws="websockets-sansio", ws_max_size=LARGEST_MESSAGE, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server._serve([listening]))
        site = Site(page, port)
        try:
            await asyncio.wait_for(act(site), 60)
            status, _ = await site.get("/")
            assert status == 200  # it still serves
        finally:
            server.should_exit = True
            await serving
            listening.close()

    asyncio.run(run())


def test_who_has_not_the_address_gets_nothing(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        right = f"http://{site.host}"
        for token in ("", "x", site.page.token[:-1], site.page.token + "x", "%00", "π"):
            found = await site.connect(token)
            with pytest.raises(ConnectionClosed) as closed:  # with a code: a page of an earlier run says what to do
                await found.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == REFUSED == 4403, token
            assert site.page._clients == 0
        for token, origin in (
            (None, None), (None, "null"), (None, "http://evil.example"), (None, f"https://{site.host}"),
            (None, f"http://127.0.0.1:{site.port + 1}"), (None, f"{right}.evil.example"), (None, f"http://{site.port}"),
        ):  # fmt: skip
            with pytest.raises(InvalidStatus) as refused:
                await site.connect(token, origin)
            assert refused.value.response.status_code == 403, (token, origin)
        for host in ("evil.example", f"evil.example:{site.port}", f"0.0.0.0:{site.port}", "127.0.0.1", ""):
            status, body = await site.get("/", host or " ")
            assert status in (400, 421), host
            assert site.page.token not in body
            with pytest.raises(InvalidStatus):  # as after DNS rebinding: the name is another one
                await site.connect(additional_headers={"Host": host or "x"})

    _attack(tmp_path, act)


def test_only_the_files_of_the_page_are_served(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        for path in (
            "/../secret.py", "/..%2fsecret.py", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/train.py", "/page.js/..",
            "/./../project/train.py", "/socket", "/page.js%00.css", "/" + "a" * 5000, "/..\\secret.py",
        ):  # fmt: skip
            status, body = await site.get(path)
            assert status in (400, 404, 307), path
            assert "SECRET" not in body
            assert "root:" not in body
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
            status, _ = await site.get("/", method=method)
            assert status == 405
        status, answer = await site.get("/")
        assert "frame-ancestors 'none'" in answer
        assert site.page.token not in answer
        for name in ("../secret.py", "/etc/hostname", "train.py\0", "..\\secret.py", "~"):
            found = await site.opened()
            await found.send(json.dumps({"type": "open", "file": name, "id": 1}))
            said = json.loads(await found.recv())
            assert (said["type"], said["id"]) == ("refused", 1)
            await found.send(json.dumps({"type": "save", "file": name, "text": "x", "base": "y", "id": 2}))
            assert json.loads(await found.recv())["type"] == "refused"
            await found.close()

    _attack(tmp_path, act)
    assert (tmp_path / "secret.py").read_text() == "SECRET = 1\n"


def test_who_does_not_greet_is_sent_away_in_words(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        for first, words in (
            (json.dumps({"type": "hello", "version": 2}), "speaks version 1, not 2"), ("{", "expected JSON"),
            (json.dumps({"type": "profile"}), "speaks version 1"), (b"\xff\x00", "got bytes"), (b"", ""),
            ("", "expected JSON"), ("[" * 100_000, "expected JSON"),
        ):  # fmt: skip
            found = await site.connect()
            await found.send(first)
            with pytest.raises(ConnectionClosed) as closed:
                await found.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == OTHER_VERSION, first
            assert words in closed.value.rcvd.reason
        found = await site.opened()
        for wrong in ("{", b"\xff", json.dumps({"type": "options", "options": {}}), json.dumps([1]), "\ud7ff"):
            await found.send(wrong)
            assert json.loads(await found.recv())["type"] == "refused"
        await found.send(json.dumps({"type": "save", "file": "train.py", "text": "\ud800", "base": "x"}))
        assert json.loads(await found.recv())["type"] == "refused"
        base = site.page.session.project.read("train.py").digest
        await found.send(json.dumps({"type": "save", "file": "train.py", "text": "\ud800", "base": base}))
        assert "half a character" in json.loads(await found.recv())["text"]
        await found.close()

    _attack(tmp_path, act)


def test_reasons_are_cut_and_ids_can_be_said_again(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        for first in ('{"type": "hello", "version": ' + "1" * 4000 + "}", json.dumps({"type": "🙂" * 200})):
            found = await site.connect()
            await found.send(first)
            with pytest.raises(ConnectionClosed) as closed:
                await found.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == OTHER_VERSION
        found = await site.opened()
        for wrong in ("NaN", "1.5", "[" * 900 + "]" * 900, "{}"):
            await found.send('{"type": "open", "file": "train.py", "id": ' + wrong + "}")
            assert "id: expected" in json.loads(await asyncio.wait_for(found.recv(), 10))["text"]
        await found.send('{"type": "open", "file": "train.py", "id": "π"}')
        assert json.loads(await found.recv())["id"] == "π"
        await found.close()

    _attack(tmp_path, act)


def test_a_client_gets_in_while_the_entry_file_is_away(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        site.page.session.project.entry.unlink()
        found = await site.connect()
        await found.send(_HELLO)
        source = json.loads(await found.recv())["source"]
        assert (source["file"], source["text"]) == ("train.py", "")
        assert "expected a Python file" in source["error"]
        assert json.loads(await found.recv())["type"] == "state"
        await found.close()

    _attack(tmp_path, act)


def test_clients_that_say_or_take_nothing_give_their_places_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roller.server.page_server.GREETS_S", 0.1)
    monkeypatch.setattr("roller.server.page_server.TAKES_S", 0.1)

    async def act(site: Site) -> None:
        silent = await site.connect()
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(silent.recv(), 10)
        assert closed.value.rcvd is not None
        assert "expected hello" in closed.value.rcvd.reason
        deaf = await site.opened(compression=None)
        deaf.transport.pause_reading()
        for _ in range(200):
            site.page.session._tell({"type": "progress", "text": "x" * 1_000_000})
        for _ in range(500):
            if site.page._clients == 0:
                break
            await asyncio.sleep(0.02)
        assert site.page._clients == 0
        deaf.transport.abort()

    _attack(tmp_path, act)


def test_fifty_clients_and_their_place_afterwards(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        clients = [await site.connect() for _ in range(50)]
        for one in clients:
            with contextlib.suppress(ConnectionClosed):
                await one.send(_HELLO)
        codes, served = [], []
        for one in clients:
            try:
                await asyncio.wait_for(one.recv(), 10)
                served.append(one)
            except ConnectionClosed as closed:
                assert closed.rcvd is not None
                codes.append(closed.rcvd.code)
        assert (len(served), set(codes)) == (MOST_CLIENTS, {TOO_MANY})
        for one in served:
            await one.close()
        for _ in range(100):
            with contextlib.suppress(ConnectionClosed, AssertionError):
                await (await site.opened()).close()
                return
            await asyncio.sleep(0.02)
        raise AssertionError("places are not given back")

    _attack(tmp_path, act)


@pytest.mark.slow
def test_a_message_of_100_mb_ends_its_own_conversation_alone(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        other, found = await site.opened(), await site.opened()
        with pytest.raises(ConnectionClosed) as closed:
            await found.send("x" * 100_000_000)
            await found.recv()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        await other.send(json.dumps({"type": "open", "file": "train.py"}))
        assert json.loads(await other.recv())["type"] == "source"
        await other.close()

    _attack(tmp_path, act)


def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        found = await site.opened(compression=None)
        found.transport.pause_reading()
        for _ in range(1000):
            site.page.session._tell({"type": "progress", "text": "x" * 100_000})
            await asyncio.sleep(0)
        found.transport.resume_reading()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                await asyncio.wait_for(found.recv(), 20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == TOO_SLOW
        await (await site.opened()).close()

    _attack(tmp_path, act)
