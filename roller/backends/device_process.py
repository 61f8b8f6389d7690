"""Parent's side of a device process: start, requests with a time limit, and restart after a fault."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from roller.backends.message_channel import (
    ChannelClosed,
    ChannelTimeout,
    pack_arrays,
    receive_message,
    send_message,
    unpack_arrays,
)
from roller.backends.parse_device_names import (
    DeviceHandle,
    DeviceProperties,
    find_matching_spec,
    parse_device_name,
    properties_from_data,
)
from roller.core.package_folders import environment_with_package
from roller.errors import LaunchError

if TYPE_CHECKING:
    from roller.hardware import DeviceSpec

#: Time limit in seconds for opening a device, which may create a CUDA context and start the driver.
START_TIMEOUT_S = 120.0
#: Time limit in seconds for a killed process to end.
_LEAVE_S = 10.0


class DeviceFault(Exception):
    """A request failed; ``status`` and ``reason`` go into the candidate's record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class DeviceProcess:
    """Process that owns one device; it is started on first use and again after a fault.

    Parameters
    ----------
    command
        Command to start instead of this package's worker, for example under a checker; the device's name is appended.
    """

    def __init__(self, handle: DeviceHandle, command: Sequence[str] = ()) -> None:
        self.handle = handle
        self._command = tuple(command) or (sys.executable, "-m", "roller.runtime.worker")
        #: Number of starts; a new process does not have the state sent to the previous one.
        self.generation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not been stopped."""
        return self._process is not None

    def properties(self) -> DeviceProperties:
        """Return the properties of the device."""
        try:
            reply, _ = self.request({"op": "properties"}, timeout_s=START_TIMEOUT_S)
        except DeviceFault as err:
            # The device itself reports a missing package; other errors get the device's name here.
            known = err.status == "failed"
            text = err.reason if known else f"device '{self.handle.text}': cannot be opened: {err.reason}"
            raise LaunchError(text) from err
        return properties_from_data({k: v for k, v in reply.items() if k != "arrays"})

    def request(
        self, header: dict[str, Any], arrays: Sequence[np.ndarray] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Send one request and return the response."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        descriptions, blobs = pack_arrays(arrays)
        try:
            send_message(process.stdin.fileno(), {**header, "arrays": descriptions}, blobs)
            reply, data = receive_message(process.stdout.fileno(), timeout_s)
        except ChannelTimeout:
            self.close()
            raise DeviceFault("timeout", f"no answer within {timeout_s:g} s; its process was stopped") from None
        except (ChannelClosed, ValueError) as err:
            raise DeviceFault("crashed", self._describe_end()) from err
        if "error" in reply:
            if reply["status"] == "crashed":
                self.close()
            raise DeviceFault(reply["status"], reply["error"])
        return reply, unpack_arrays(reply["arrays"], data)

    def close(self) -> None:
        """Stop the process, if any."""
        process, self._process = self._process, None
        if process is not None:
            end_process(process, self._stderr)

    def __enter__(self) -> DeviceProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self.generation += 1
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
            self._process = subprocess.Popen(
                [*self._command, self.handle.text],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=environment_with_package(),
                start_new_session=True,
                bufsize=0,
            )
        return self._process

    def _describe_end(self) -> str:
        """Describe how the process ended, with the last line of its standard error."""
        process, stderr = self._process, self._stderr
        assert process is not None and stderr is not None
        try:
            code = process.wait(5.0)
        except subprocess.TimeoutExpired:
            code = 0
        stderr.seek(0)
        lines = stderr.read().decode(errors="replace").strip().splitlines()
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the device process ended by {how}" + (f": {lines[-1]}" if lines else "")


def end_process(process: subprocess.Popen[bytes], stderr: IO[bytes] | None) -> None:
    """Kill a process and close its streams."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver; it cannot be ended
        process.wait(_LEAVE_S)
    for stream in (process.stdin, process.stdout, stderr):
        if stream is not None:
            stream.close()


def resolve_device(
    device: str, names: Iterable[str], load: Callable[[str], DeviceSpec]
) -> tuple[DeviceSpec, DeviceHandle]:
    """Return the specification and the handle of a reachable device."""
    handle = parse_device_name(device)
    if handle.spec:
        spec = load(handle.spec)
        if spec.traits != handle.target.kind:
            raise LaunchError(f"device '{device}': expected the specification of a GPU, got a {spec.kind}.")
        return spec, handle
    with DeviceProcess(handle) as process:
        properties = process.properties()
    return find_matching_spec(properties, (load(n) for n in names)), handle
