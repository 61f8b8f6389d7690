"""The page of a session in a browser or an editor panel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from roller.errors import RollerError, shown
from roller.hardware import list_specs, load_spec
from roller.server.check_client_messages import LARGEST_MESSAGE
from roller.server.live_profile_session import Session
from roller.server.page_server import PageServer
from roller.server.serve_entry_file import device_facts, listen_on
from roller.server.time_limit import await_with_limit

#: Origins that may show the page in a frame: the editor on this machine, and its browser version.
_FRAMES = "vscode-webview: vscode-file: https://*.vscode-cdn.net"
_LOOPBACK = ("127.0.0.1", "localhost")
#: Interval in seconds between two checks of whether the page is served.
_LOOK_S = 0.01


class EditorPage:
    """Server of a session's page; the session continues when the page is closed."""

    def __init__(self, session: Session, devices: list[dict[str, Any]]) -> None:
        self._socket = listen_on(_LOOPBACK[0], 0)
        port = self._socket.getsockname()[1]
        hosts = tuple(f"{name}:{port}" for name in _LOOPBACK)
        self._page = PageServer(session, hosts, devices, owns_session=False, framed_by=_FRAMES)
        self.address = f"http://{hosts[0]}/?token={self._page.token}"
        config = uvicorn.Config(
            self._page.app, log_config=None, access_log=False, ws="websockets-sansio", ws_max_size=LARGEST_MESSAGE,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = _ServerWithoutSignals(config)
        self._running = asyncio.ensure_future(self._server.serve([self._socket]))

    @property
    def is_served(self) -> bool:
        """Whether the server runs or is starting."""
        return not self._running.done()

    async def wait_until_started(self) -> None:
        """Wait until the server accepts connections."""
        while not self._server.started and self.is_served:
            await asyncio.sleep(_LOOK_S)
        if not self.is_served:
            error = None if self._running.cancelled() else self._running.exception()
            why = "one that ended" if error is None else shown(f"{type(error).__name__}: {error}")
            raise RollerError(f"showPage: expected a page at {self._page.hosts[0]}, got {why}. Show the page again.")

    def allow_host(self, host: str) -> None:
        """Also accept the host header ``host``, a local address whose port is forwarded to this server."""
        name, _, port = host.rpartition(":")
        if name not in _LOOPBACK or not port.isascii() or not port.isdigit():
            raise RollerError(
                f"showPage: expected an address such as 127.0.0.1:8765, got {shown(host)}. Forward the port of the "
                f"page, {self._page.hosts[0]}, to this machine."
            )
        if host not in self._page.hosts:
            self._page.hosts = (*self._page.hosts, host)

    async def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        with contextlib.suppress(Exception):  # timeout, or an error that was already reported
            await await_with_limit(3.0, self._running)
        self._socket.close()


def profilable_device_facts() -> list[dict[str, Any]]:
    """Return facts about all devices that can be chosen; this reads every specification."""
    specs = [load_spec(name) for name in list_specs()]
    return [device_facts(spec) for spec in specs if spec.traits.blocks or not spec.traits.discrete]


class _ServerWithoutSignals(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signal handling to the language server."""
        yield
