"""Sockets that end half-way, that come again and again, and two servers of one project: nothing hangs or is left."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from roller.server.live_profile_session import Session
from roller.server.page_server import PageServer
from roller.server.profiling_process_connections import WorkerProcesses
from roller.server.project_files import Project
from tests.server.test_web import Site, _attack


async def _until(is_so: Callable[[], object]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited for too long")


def _is_empty(site: Site) -> bool:
    return not site.page._clients and not site.page.session._listeners


def test_sockets_that_end_halfway_give_their_places_back(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        shut = await site.opened()
        shut.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # it would still read
        reset = await site.opened()
        reset.transport.abort()
        half = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(60)]
        for number, (_, writer) in enumerate(half):
            writer.write(b"GET /socket HTTP/1.1\r\nHost: x\r\nUpgr"[: 1 + number])  # no request ends
            await writer.drain()
        await _until(lambda: _is_empty(site))
        found = await site.opened()  # the others still come in
        await found.send(json.dumps({"type": "open", "file": "train.py"}))
        assert json.loads(await found.recv())["type"] == "source"
        await found.close()
        for _, writer in half:
            writer.transport.abort()

    _attack(tmp_path, act)


def test_a_client_that_leaves_in_the_middle_of_its_frame_is_forgotten(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        found = await site.opened(compression=None)
        found.transport.write(b"\x81\xfe\xff\xff\0\0\0\0half of a frame")
        await asyncio.sleep(0.05)
        assert site.page._clients == 1
        found.transport.abort()
        await _until(lambda: _is_empty(site))

    _attack(tmp_path, act)


@pytest.mark.slow
def test_a_hundred_reconnects_leave_nothing(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        await (await site.opened()).close()
        await _until(lambda: _is_empty(site))
        before = len(asyncio.all_tasks())
        for number in range(100):
            found = await site.opened()
            if number % 2:
                found.transport.abort()
            else:
                await found.close()
        await _until(lambda: _is_empty(site) and len(asyncio.all_tasks()) <= before)
        await (await site.opened()).close()

    _attack(tmp_path, act)


def test_two_servers_of_one_project_see_each_others_saves_and_overwrite_none(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        entry = site.page.session.project.entry
        other = Session(Project(entry), WorkerProcesses(), is_live=False)
        beside = PageServer(other, site.page.hosts, [], owns_session=False)
        text = entry.read_text()
        base = site.page._hello_message()["source"]["digest"]
        assert base == beside._hello_message()["source"]["digest"]

        def save(page: PageServer, words: str) -> dict[str, object]:
            return page._answer(json.dumps({"type": "save", "file": "train.py", "text": text + words, "base": base}))

        assert save(beside, "# theirs\n")["type"] == "saved"
        site.page.session.check_files_for_changes()
        assert (site.page.session.state.status, site.page.session.state.revision) == ("stale", 1)
        refused = save(site.page, "# ours\n")
        assert refused["type"] == "refused"
        assert "got a newer one. Read it again, then save." in str(refused["text"])
        assert entry.read_text() == f"{text}# theirs\n"
        site.page.session.check_files_for_changes()
        other.check_files_for_changes()
        assert (site.page.session.state.revision, other.state.revision) == (1, 1), "nobody answers a save by another"

    _attack(tmp_path, act)


def test_a_project_whose_folder_is_deleted_is_told_in_words_and_may_come_back(tmp_path: Path) -> None:
    async def act(site: Site) -> None:
        session = site.page.session
        folder = session.project.folder
        found = await site.opened()
        base = session.project.read("train.py").digest
        shutil.move(folder, tmp_path / "away")
        for _ in range(3):
            session.check_files_for_changes()
        assert (session.state.status, session.state.revision) == ("stale", 1)
        state = json.loads(await found.recv())
        assert "expected a Python file below 'project'" in state["batch"]["error"]
        for asked in (
            {"type": "open", "file": "train.py"},
            {"type": "save", "file": "train.py", "text": "x = 1\n", "base": base},
        ):
            await found.send(json.dumps(asked))
            answer = json.loads(await found.recv())
            assert answer["type"] == "refused"
            assert "got none. Name one, such as train.py." in answer["text"]
            assert str(tmp_path) not in answer["text"]
        assert not folder.exists()
        later = await site.opened()  # one who comes meanwhile gets in, and is told
        await later.close()
        shutil.move(tmp_path / "away", folder)
        session.check_files_for_changes()
        assert session.state.revision == 2
        assert json.loads(await found.recv())["batch"]["value"] == 16
        await found.close()

    _attack(tmp_path, act)
