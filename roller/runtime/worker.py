"""Device process: opens one device, runs one candidate at a time, and responds on a pipe.

It is started as ``python -m roller.runtime.worker NAME`` in a fresh interpreter, without TVM or a forked CUDA context.
A device fault ends only this process; the profiler records the reason and starts another.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from roller.artifact import KernelArtifact
from roller.backends.message_channel import ChannelClosed, pack_arrays, receive_message, send_message, unpack_arrays
from roller.backends.parse_device_names import parse_device_name
from roller.errors import RollerError
from roller.expr.serialize import expr_from_dict

_ORPHAN_POLL_S = 0.5


class DeviceWorker:
    """An open device that executes requests."""

    def __init__(self, name: str) -> None:
        handle = parse_device_name(name)
        self._device: Any = handle.target.open_worker(handle.index, dict(handle.options))

    def usable(self) -> bool:
        """Return whether the device still works after a refused request."""
        return bool(getattr(self._device, "usable", lambda: True)())

    def answer(self, request: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Execute one request; return the reply and its arrays."""
        op = request["op"]
        if op == "properties":
            return self._device.properties(), []
        if op == "prepare":
            points = unpack_arrays(request["arrays"], blobs)
            self._device.prepare(expr_from_dict(request["expression"]), request["seed"], points)
            return {}, []
        if op == "probe_load":
            image, *blocks = unpack_arrays(request["arrays"], blobs)
            inputs = list(zip(request["words"], blocks, strict=True))
            self._device.probe_load(image.tobytes(), inputs, request["output_words"])
            return {}, []
        if op == "probe_run":
            return self._device.probe_run(request["case"], request["check_steps"]), []
        if op == "check":
            return {}, self._device.check(request["position"], KernelArtifact.from_dict(request["artifact"]))
        return self._device.time(request["id"], request["budget_s"], request["drop_s"]), []


def answer_requests(name: str, source: int, sink: int) -> None:
    """Execute requests until the pipe closes or a fault leaves the device in an unknown state."""
    # A refusal (RollerError, or no memory) is an answer; after any other exception the process ends.
    worker: DeviceWorker | None = None
    while True:
        try:
            request, blobs = receive_message(source)
        except ChannelClosed:
            return
        try:
            worker = worker or DeviceWorker(name)
            reply, arrays = worker.answer(request, blobs)
        except (RollerError, MemoryError) as err:
            usable = worker is None or worker.usable()
            send_message(sink, {"error": str(err) or type(err).__name__, "status": "failed" if usable else "crashed"})
            if not usable:
                os._exit(1)
            continue
        except Exception as err:  # noqa: BLE001 - any error is the candidate's reason
            send_message(sink, {"error": f"{type(err).__name__}: {err}", "status": "crashed"})
            # Not by a normal exit: destructors would access a device that no longer answers.
            os._exit(1)
        descriptions, data = pack_arrays(arrays)
        send_message(sink, {**reply, "arrays": descriptions}, data)


def _exit_with_parent() -> None:
    """End this process when its parent is gone, even while a kernel runs that never ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Take over standard input and output as the pipe, then serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A kernel's printf must not corrupt a message.
    source, sink = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    _exit_with_parent()
    answer_requests(sys.argv[1], source, sink)


if __name__ == "__main__":
    main()
