"""Process that imports PyTorch once and forks the profiling processes; it loads no project code.

The server sends JSON lines: ``{"fork": n}`` with the descriptors of the new process's socket and output, and ``{"kill":
pid}``. Responses are ``{"forked": n, "pid": pid}`` and ``{"ended": pid, "status": status}``. When the server exits,
this process and all its children end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

#: Modules that a profile needs; if one is missing, the profiling process reports it.
_PRELOADED = (
    "torch", "torch._dynamo.eval_frame", "torch._meta_registrations", "torch._refs", "torch._decomp",
    "roller.insight.trace.pytorch.entry_file", "roller.insight.step_profile.profiling", "roller.insight.forecast",
    "roller.insight.step_profile.difference", "roller.insight.whatif.search", "roller.server.profile_worker",
)  # fmt: skip
#: Options of ``prctl``: adopt orphaned descendants; send a signal when the parent dies.
_CHILD_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1
#: Largest file, in bytes, that a profiled project may write.
LARGEST_FILE_BYTES = 1 << 30
#: Maximum time in seconds for ending all children before this process exits.
_END_S = 5.0


class ForkServer:
    """Forks, kills and reaps profiling processes on request."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._buffer = b""
        self._forked: set[int] = set()
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the wakeup descriptor is not written
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Execute requests until the server exits."""
        while True:
            ready = {*select.select([self._server.fileno(), self._wake], [], [])[0]}
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap_children()
            if self._server.fileno() in ready:
                self._handle_requests()

    def _handle_requests(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._server, 1 << 16, 8)
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._kill_all_and_exit()
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "fork" in request:
                self._fork(request["fork"], descriptors)
            elif request["kill"] in self._forked:
                self._kill_process_group(request["kill"])

    def _kill_all_and_exit(self) -> NoReturn:
        """Kill all children and their descendants, which this process adopts when their parents end; then exit."""
        for pid in tuple(self._forked):
            self._kill_process_group(pid)
        end = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < end:
                self._forked.clear()
                self._kill_orphans()
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)
        os._exit(0)

    def _fork(self, number: int, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(*descriptors)
        for one in descriptors:
            os.close(one)
        self._forked.add(pid)
        self._tell({"forked": number, "pid": pid})

    def _become_worker(self, conversation: int, output: int) -> NoReturn:
        status = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._server.close()
            os.close(self._wake)
            _die_with_parent()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            most = LARGEST_FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, LARGEST_FILE_BYTES)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # the kernel ends this process first if memory runs out
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            for one in (nothing, output):
                os.close(one)
            from roller.server.profile_worker import serve

            serve(conversation)
            status = 0
        finally:
            os._exit(status)

    def _reap_children(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid not in self._forked:
                    self._kill_orphans()  # children of an ended orphan are orphans now
                else:
                    self._forked.discard(pid)
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)  # children that it left running
                    self._kill_orphans()
                    self._tell({"ended": pid, "status": os.waitstatus_to_exitcode(status)})

    def _kill_process_group(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)

    def _kill_orphans(self) -> None:
        """Kill detached processes of a project: adopted children that this process did not fork."""
        for pid in _children_of_this_process() - self._forked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _tell(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the next read finds that the server has exited
            self._server.sendall(json.dumps(answer).encode() + b"\n")


def _children_of_this_process() -> set[int]:
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except (OSError, ValueError):
        return set()


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    parent = os.getppid()
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _preload_pytorch_modules() -> None:
    """Forecast an inference so that PyTorch loads the modules that it would load at first use."""
    from torch import nn, zeros

    from roller.insight.forecast import forecast
    from roller.insight.tracing import trace

    # No backward pass: it would start autograd's threads, which forked processes do not have.
    def some_layers() -> nn.Module:
        convolution = (nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*convolution, nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1))

    forecast(trace(some_layers, zeros(2, 1, 8, 8)), "a100")


def main(descriptor: int) -> NoReturn:
    """Import the modules needed for profiling and serve requests."""
    server = socket.socket(fileno=descriptor)
    for name in _PRELOADED:  # if an import fails, the worker tries it again and reports the error
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        _preload_pytorch_modules()
    _prctl(_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()  # keeps the collectors of the children from writing to shared pages
    with contextlib.suppress(OSError):  # the server has exited; the first read notices
        server.sendall(b'{"ready": true}\n')
    ForkServer(server).run()
