"""Language servers from their start to their end: nothing is left of them, however they end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pygls")

from tests.server.entries import NET
from tests.server.processes import alive, descendants_of

pytestmark = [
    pytest.mark.slow,  # each starts a server, and a process that imports PyTorch
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc"),
]
_ROOT = Path(__file__).parents[2]


class Conversation:
    """A language server, spoken with in JSON-RPC as it is."""

    def __init__(self, folder: Path, **capabilities: Any) -> None:
        command = [sys.executable, "-m", "roller.cli.main", "lsp"]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )  # fmt: skip
        self.folder, self.count = folder, 0
        self.messages: list[dict[str, Any]] = []
        params = {"processId": None, "rootUri": folder.as_uri(), "capabilities": capabilities}
        self.initialized = self.ask("initialize", {**params, "initializationOptions": {"device": "v100"}})["result"]
        self.tell("initialized", {})

    def tell(self, method: str, params: Any, **more: Any) -> None:
        assert self.server.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.stdin.flush()

    def send_request(self, method: str, params: Any) -> int:
        self.count += 1
        self.tell(method, params, id=self.count)
        return self.count

    def close(self) -> None:
        self.server.kill()
        self.server.wait()
        for pipe in (self.server.stdin, self.server.stdout):
            assert pipe is not None
            pipe.close()

    def ask(self, method: str, params: Any) -> dict[str, Any]:
        number = self.send_request(method, params)
        while True:
            message = self.read()
            if message.get("id") == number and "method" not in message:
                return message
            self.messages.append(message)

    def read(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        size = 0
        while line := self.server.stdout.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        assert size, "the server has ended"
        found = json.loads(self.server.stdout.read(size))
        if "id" in found and "method" in found:  # a request to the client
            self.reply(found["id"])
        return found

    def reply(self, number: Any) -> None:
        assert self.server.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": None}).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.stdin.flush()

    def profile(self, name: str, waits: bool = True) -> dict[str, Any]:
        uri = (self.folder / name).as_uri()
        started = self.ask("workspace/executeCommand", {"command": "roller.profile", "arguments": [uri]})
        assert "error" not in started, started
        return self.ask("roller/profile", {"uri": uri, "wait": waits})["result"]


def _until_gone(pids: set[int]) -> None:
    async def wait() -> None:
        for _ in range(5000):
            if not alive(pids):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"left over: {alive(pids)}")

    asyncio.run(wait())


def _end_by_protocol(one: Conversation) -> None:
    assert one.ask("shutdown", None)["result"] is None
    one.tell("exit", None)
    assert one.server.wait(120) == 0  # although its input is open


def _end_without_shutdown(one: Conversation) -> None:
    one.tell("exit", None)
    assert one.server.wait(120) == 1


def _end_of_input(one: Conversation) -> None:
    assert one.server.stdin is not None
    one.server.stdin.close()
    one.server.wait(120)


def _end_by_force(one: Conversation) -> None:
    os.kill(one.server.pid, signal.SIGKILL)
    assert one.server.wait(120) == -9


@pytest.mark.parametrize("end", [_end_by_protocol, _end_without_shutdown, _end_of_input, _end_by_force])
def test_nothing_is_left_of_a_server(tmp_path: Path, end: Any) -> None:
    (tmp_path / "train.py").write_text(f"import time\ntime.sleep(1000)\n{NET}")
    one = Conversation(tmp_path)
    try:
        one.profile("train.py", waits=False)
        while len(below := descendants_of(one.server.pid)) < 2:  # the process that forks, and one that profiles
            assert one.server.poll() is None
        end(one)
    finally:
        one.server.kill()
        one.server.wait()
        for pipe in (one.server.stdin, one.server.stdout):
            assert pipe is not None
            pipe.close()
    _until_gone(below)


def test_two_servers_at_once_and_progress(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NET)
    (tmp_path / "printing.py").write_text("print('to the output')\nimport os\nos.system('echo more')\n" + NET)
    both = [Conversation(tmp_path, window={"workDoneProgress": True}) for _ in range(2)]
    try:
        assert [x.initialized["capabilities"]["experimental"] for x in both] == [{"roller": {"protocol": 1}}] * 2
        found = [one.profile(name) for one, name in zip(both, ("train.py", "printing.py"), strict=True)]
        assert [x["status"] for x in found] == ["ready", "ready"], [x["error"] for x in found]
        assert [x["options"]["devices"] for x in found] == [[["v100", 1]]] * 2
        times = [x["results"]["profile"]["data"]["profile"]["iteration_s"] for x in found]
        assert times[0] == times[1]
        for one in both:
            kinds = [x["params"]["value"]["kind"] for x in one.messages if x.get("method") == "$/progress"]
            assert kinds[0] == "begin"
            assert set(kinds) <= {"begin", "report", "end"}
            one.ask("shutdown", None)
            one.tell("exit", None)
            assert one.server.wait(120) == 0
    finally:
        for one in both:
            one.server.kill()
            one.server.wait()
            for pipe in (one.server.stdin, one.server.stdout):
                assert pipe is not None
                pipe.close()


def test_two_servers_on_one_file_of_a_large_project_and_two_entry_files_of_one_client(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(4 << 30)  # sparse: it takes no room, but reading it would
    for number in range(2000):
        (tmp_path / f"part{number}.py").write_text(f"X = {number}\n")
    sources = {"train.py": f"from part7 import X\n{NET}", "other.py": NET.replace("batch_size=16", "batch_size=32")}
    for name, source in sources.items():
        (tmp_path / name).write_text(source)
    both = [Conversation(tmp_path) for _ in range(2)]
    try:
        first = [one.profile("train.py") for one in both]
        assert [x["status"] for x in first] == ["ready", "ready"], [x["error"] for x in first]
        assert first[0]["results"] == first[1]["results"]
        second = both[0].profile("other.py")
        assert (second["entry"], second["results"]["profile"]["data"]["profile"]["batch"]) == ("other.py", 32)
        again = both[0].ask("roller/profile", {"uri": (tmp_path / "train.py").as_uri(), "wait": True})["result"]
        assert (again["entry"], again["results"]) == ("train.py", first[0]["results"])
        for one in both:
            (read,) = (x for x in Path(f"/proc/{one.server.pid}/io").read_text().splitlines() if x.startswith("rchar"))
            assert int(read.split()[1]) < 1 << 28
            (most,) = (x for x in Path(f"/proc/{one.server.pid}/status").read_text().splitlines() if "VmHWM" in x)
            assert int(most.split()[1]) < 1 << 20  # KiB
            assert one.ask("shutdown", None)["result"] is None
            one.tell("exit", None)
            assert one.server.wait(120) == 0
    finally:
        for one in both:
            one.close()
