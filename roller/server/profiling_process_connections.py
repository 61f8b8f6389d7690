"""Profiling processes as the server sees them: forked on demand, with one connection to each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from roller.core.package_folders import environment_with_package
from roller.errors import RollerError
from roller.server.split_long_messages import MessageJoiner, split_message
from roller.server.time_limit import await_with_limit

_HEAD = struct.Struct("<Q")
#: Maximum size of an answer in bytes; a larger size means a damaged stream.
_LARGEST = 1 << 29
#: Maximum number of lines of a process's output to keep, and maximum number of bytes of a line.
_OUTPUT_LINES, _LINE_BYTES = 200, 2000
#: Program of the fork server; it removes the working directory from the path, so that a project's ``yaml.py`` does not
#: shadow a dependency.
_FORKS = "import sys; sys.path.pop(0); from roller.server.fork_server import main; main(int(sys.argv[1]))"
#: Time in seconds to wait for a process's stack trace or exit status.
_ANSWER_S = 0.5


class WorkerEnded(Exception):
    """Raised if a process ended; the text describes how it ended."""


class WorkerConnection:
    """A connection to a profiling process."""

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, output: asyncio.StreamReader,
        pipe: asyncio.BaseTransport,
    ) -> None:  # fmt: skip
        self.pid, self._pipe = pid, pipe
        self._reader, self._writer = reader, writer
        self._size: int | None = None
        self._received_bytes = 0
        self._joiner = MessageJoiner()
        self._lines: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._draining = asyncio.ensure_future(self._keep_last_output_lines(output))

    @property
    def output(self) -> tuple[str, ...]:
        """The last lines that the process printed."""
        return tuple(self._lines)

    async def send(self, request: dict[str, Any]) -> None:
        """Send a request in parts."""
        try:
            for part in split_message(request):
                text = json.dumps({**part, "blobs": []}).encode()
                self._writer.write(_HEAD.pack(len(text)) + text)
                await self._writer.drain()
                await asyncio.sleep(0)  # the loop does other work meanwhile
        except (ConnectionError, OSError):
            raise WorkerEnded(await self.describe_end()) from None

    async def receive(self, change: Callable[[Any], Any] | None = None) -> dict[str, Any]:
        """Return the next response; if ``change`` is given, it is applied to the response's data."""
        try:
            while True:
                said = json.loads(await self._read_message_part())
                if not isinstance(said, dict):
                    raise ValueError("no answer")
                if change is not None:
                    said.update((name, change(said[name])) for name in ("rows", "data") if name in said)
                answer = self._joiner.take(said)
                if answer is not None:
                    self._received_bytes = 0
                    break
                await asyncio.sleep(0)  # the loop does other work meanwhile
            if not isinstance(answer.get("stage"), str):
                raise ValueError("no answer")
            return answer
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            raise WorkerEnded(await self.describe_end()) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WorkerEnded("what is no answer") from None

    async def _read_message_part(self) -> bytes:
        # Each read is atomic, so a caller may be cancelled between the two and resume later.
        if self._size is None:
            (self._size,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        if self._size + self._received_bytes > _LARGEST:
            raise ValueError("too large")
        data = await self._reader.readexactly(self._size)
        self._received_bytes += self._size
        self._size = None
        return data

    async def describe_end(self) -> str:
        """Return a text that says how the process ended and the last line that it printed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await await_with_limit(_ANSWER_S, asyncio.shield(self._draining))
        try:
            code = await await_with_limit(_ANSWER_S, asyncio.shield(self._status))
            how = f"its end by signal {-code}" if code < 0 else f"its end with status {code}"
        except asyncio.TimeoutError:
            how = "its end"
        last = next((line for line in reversed(self._lines) if line.strip()), "")
        return how + (f" after it said: {last.strip()[:200]}" if last else "")

    async def request_stack_lines(self) -> tuple[str, ...]:
        """Return the lines of the process's Python stack, as its fault handler prints them, innermost first."""
        before = len(self._lines)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
        await asyncio.sleep(_ANSWER_S)
        return tuple(self._lines)[before:] if len(self._lines) > before else tuple(self._lines)[-20:]

    def ended(self, status: int) -> None:
        """Record the exit status."""
        if not self._status.done():
            self._status.set_result(status)

    async def close(self) -> None:
        """Close the connection and stop reading the output of the process and its children."""
        self._draining.cancel()
        self._pipe.close()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _keep_last_output_lines(self, output: asyncio.StreamReader) -> None:
        rest = b""
        while data := await output.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_LINE_BYTES:]
            self._lines.extend(line[-_LINE_BYTES:].decode(errors="replace") for line in lines[-_OUTPUT_LINES:])
        if rest:
            self._lines.append(rest.decode(errors="replace"))


class WorkerProcesses:
    """Forks profiling processes from a process that has imported PyTorch."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._lock = asyncio.Lock()
        self._socket: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._workers: dict[int, WorkerConnection] = {}
        #: Exit statuses of processes that ended before they were registered here.
        self._early: dict[int, int] = {}
        self._count = 0
        self._killing: set[asyncio.Future[None]] = set()

    async def fork(self) -> WorkerConnection:
        """Fork a new process."""
        forking = asyncio.ensure_future(self._fork_under_lock())
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._kill_forked_worker)  # the caller no longer waits for it
            raise

    async def _fork_under_lock(self) -> WorkerConnection:
        async with self._lock:
            await self._start()
            assert self._socket is not None and self._ready is not None
            await self._ready
            return await self._fork(self._socket)

    def _kill_forked_worker(self, forking: asyncio.Future[WorkerConnection]) -> None:
        if not forking.cancelled() and forking.exception() is None:
            self.kill_soon(forking.result())

    def kill_soon(self, worker: WorkerConnection) -> None:
        """Start killing a process and its children without waiting for them to end."""
        killing = asyncio.ensure_future(self.kill(worker))
        self._killing.add(killing)
        killing.add_done_callback(self._killing.discard)

    async def kill(self, worker: WorkerConnection) -> None:
        """Kill a process and its children; return when they have ended, or after 10 s."""
        try:
            if self._socket is not None:
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    self._socket.sendall(json.dumps({"kill": worker.pid}).encode() + b"\n")
                    await await_with_limit(10.0, asyncio.shield(worker._status))
        finally:
            await worker.close()

    async def close(self) -> None:
        """End all processes."""
        process, self._process = self._process, None
        workers = tuple(self._workers.values())
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for worker in workers:
            await worker.close()
        if self._killing:
            await asyncio.wait(self._killing)
        if process is not None:
            try:
                await await_with_limit(5.0, process.wait())
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()

    async def _start(self) -> None:
        if self._reading is not None and not self._reading.done():
            return
        if self._socket is not None:
            self._socket.close()
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise RollerError(
                "serve: expected Linux or macOS, got a system that cannot fork. Use roller profile there."
            )
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._python, "-c", _FORKS, str(theirs.fileno()), pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                env=environment_with_package(), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise RollerError(
                f"serve: expected an interpreter, got {error.strerror}. Name one that is there."
            ) from None
        finally:
            theirs.close()
        ours.setblocking(False)
        self._socket = ours
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read(ours, self._ready))

    async def _read(self, ours: socket.socket, ready: asyncio.Future[None]) -> None:
        """Process messages from the fork server until it exits."""
        loop, buffer = asyncio.get_running_loop(), b""
        try:
            with contextlib.suppress(OSError):
                while data := await loop.sock_recv(ours, 1 << 16):
                    *lines, buffer = (buffer + data).split(b"\n")
                    for line in lines:
                        self._take(json.loads(line), ready)
        finally:
            self._fail_pending_requests(ready)

    def _fail_pending_requests(self, ready: asyncio.Future[None]) -> None:
        """Fail all pending requests, since the fork server has exited."""
        gone = RollerError("serve: expected the process that forks, got its end. Try again.")
        if not ready.done():
            ready.set_exception(gone)
            ready.exception()  # mark it as retrieved; there may be no waiter
        for waiting in self._forks.values():
            if not waiting.done():
                waiting.set_exception(gone)
        self._forks.clear()
        for worker in self._workers.values():
            worker.ended(-signal.SIGKILL)
        self._workers.clear()

    def _take(self, said: dict[str, Any], ready: asyncio.Future[None]) -> None:
        if "ready" in said:
            ready.set_result(None)
        elif "forked" in said:
            self._forks.pop(said["forked"]).set_result(said["pid"])
        elif "ended" in said:
            worker = self._workers.pop(said["ended"], None)
            if worker is None:
                self._early[said["ended"]] = said["status"]
            else:
                worker.ended(said["status"])

    async def _fork(self, server: socket.socket) -> WorkerConnection:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        output, printed = os.pipe()
        self._count += 1
        waiting = self._forks[self._count] = loop.create_future()
        try:
            socket.send_fds(server, [json.dumps({"fork": self._count}).encode() + b"\n"], [theirs.fileno(), printed])
        except OSError as error:
            ours.close()
            os.close(output)
            raise RollerError(f"serve: expected a new process, got {error.strerror}. Try again.") from None
        finally:
            theirs.close()
            os.close(printed)
        try:
            pid = await waiting
        except BaseException:
            ours.close()
            os.close(output)
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        lines = asyncio.StreamReader()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(output, "rb", 0))
        worker = WorkerConnection(pid, reader, writer, lines, pipe)
        if pid in self._early:
            worker.ended(self._early.pop(pid))
        else:
            self._workers[pid] = worker
        return worker
