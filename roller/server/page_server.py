"""Serves the page of a session: its files and a WebSocket for state and requests.

By default, the server accepts connections only from this machine. Each request must carry the server's host name, as a
protection against DNS rebinding; the socket also requires the page's origin and a token that only the page's address
contains.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from roller.errors import RollerError, shown
from roller.server import check_client_messages
from roller.server.live_profile_session import Listener, Session
from roller.server.page_files import page_files
from roller.server.time_limit import await_with_limit

if TYPE_CHECKING:
    from roller.insight.rate_card import RateCard

#: Maximum number of clients, and of messages queued for a slow client before it is disconnected.
MOST_CLIENTS, _MOST_WAITING = 16, 256
#: Close codes of the socket, in the range for applications.
REFUSED, TOO_MANY, OTHER_VERSION, TOO_SLOW = 4403, 4429, 4400, 4408
#: Maximum length of a close reason in bytes; a WebSocket close frame has little more room.
_REASON_BYTES = 120
#: Time limits in seconds for a client to send its greeting, and to take a message.
GREETS_S, TAKES_S = 10.0, 20.0
_NONCE = b"@nonce@"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
    "connect-src 'self' {sockets}; base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)


class PageServer:
    """Web server for one session.

    Parameters
    ----------
    hosts
        Host names with ports that a browser may use, e.g. ``"127.0.0.1:8765"``.
    devices
        Names and facts of the devices that can be chosen.
    prices
        Hourly rates of devices.
    owns_session
        Whether the session starts and ends with the page.
    framed_by
        Origins that may frame the page, in the syntax of a content security policy's ``frame-ancestors``.
    """

    def __init__(
        self, session: Session, hosts: tuple[str, ...], devices: list[dict[str, Any]], prices: RateCard | None = None,
        *, owns_session: bool = True, framed_by: str = "'none'",
    ) -> None:  # fmt: skip
        self.session, self.hosts = session, hosts
        self._owns_session, self._framed_by = owns_session, framed_by
        self.token = secrets.token_urlsafe(24)
        self._devices, self._prices = devices, _rate_card_data(prices)
        self._files = page_files()
        self._clients = 0
        self.app = Starlette(
            routes=[
                *(Route(path, self._serve_file, methods=["GET"]) for path in self._files),
                WebSocketRoute("/socket", self._accept_socket),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if self._owns_session:
            await self.session.start()
        yield
        if self._owns_session:
            await self.session.close()

    async def _serve_file(self, request: Request) -> Response:
        if request.headers.get("host", "") not in self.hosts:
            return PlainTextResponse(f"expected the address that roller serve printed: {self.hosts[0]}", 421)
        body, kind = self._files[request.url.path]
        nonce = secrets.token_urlsafe(16)  # for styles that the editor component adds
        # A content security policy cannot contain IPv6 addresses; 'self' covers the socket there.
        sockets = " ".join(f"ws://{host}" for host in self.hosts if not host.startswith("["))
        return Response(
            body.replace(_NONCE, nonce.encode()), media_type=kind,
            headers={
                "Content-Security-Policy": _POLICY.format(
                    sockets=sockets, nonce=nonce, frames=self._framed_by
                ),
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
                "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
            },
        )  # fmt: skip

    async def _accept_socket(self, socket: WebSocket) -> None:
        headers = socket.headers
        origins = tuple(f"http://{host}" for host in self.hosts)
        token = socket.query_params.get("token", "")
        if headers.get("host", "") not in self.hosts or headers.get("origin", "") not in origins:
            await socket.close()  # before it is accepted: HTTP 403
            return
        await socket.accept()
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            await _close(socket, REFUSED, "expected the token of this run; open the address that was printed last")
            return
        if self._clients >= MOST_CLIENTS:
            await _close(socket, TOO_MANY, f"at most {MOST_CLIENTS} clients at once")
            return
        self._clients += 1
        try:
            await self._serve_client(socket)
        except WebSocketDisconnect:
            pass
        finally:
            self._clients -= 1

    async def _serve_client(self, socket: WebSocket) -> None:
        try:
            hello = check_client_messages.parse_message(await await_with_limit(GREETS_S, socket.receive_text()))
        except asyncio.TimeoutError:
            await _close(socket, OTHER_VERSION, f"expected hello within {GREETS_S:g} s, got none")
            return
        except RollerError as error:
            await _close(socket, OTHER_VERSION, str(error))
            return
        except KeyError:
            await _close(socket, OTHER_VERSION, "message: expected text, got bytes")
            return
        if hello["type"] != "hello" or hello["version"] != check_client_messages.VERSION:
            other = shown(hello.get("version"))
            said = f"this server speaks version {check_client_messages.VERSION}, not {other}; use one release for both"
            await _close(socket, OTHER_VERSION, said)
            return
        waiting: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MOST_WAITING)

        def listener(message: dict[str, Any]) -> None:
            if waiting.full():
                while not waiting.empty():
                    waiting.get_nowait()
                waiting.put_nowait(None)
            else:
                waiting.put_nowait(message)

        listener(self._hello_message())
        listener(self.session.snapshot())
        stop = self.session.listen(listener)
        both = [
            asyncio.ensure_future(self._tell(socket, waiting)), asyncio.ensure_future(self._answer_messages(socket,
                                                                                                            listener))
        ]  # fmt: skip
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop()
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _answer_messages(self, socket: WebSocket, listener: Listener) -> None:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            answer = self._answer(message.get("text") or message.get("bytes") or "")
            if answer is not None:
                listener(answer)

    async def _tell(self, socket: WebSocket, waiting: asyncio.Queue[dict[str, Any] | None]) -> None:
        """Send queued messages until the client is too slow, that is, its queue is full or a send times out."""
        while True:
            message = await waiting.get()
            if message is None:
                await _close(socket, TOO_SLOW, "too many messages wait for this client")
                return
            try:
                await await_with_limit(TAKES_S, socket.send_text(json.dumps(message, allow_nan=False)))
            except asyncio.TimeoutError:
                return

    def _hello_message(self) -> dict[str, Any]:
        project = self.session.project
        return {
            "type": "hello", "version": check_client_messages.VERSION, "project": project.folder.name,
            "entry": project.entry_name,
            "devices": self._devices, "prices": self._prices,
            "source": self._entry_source(),
        }  # fmt: skip

    def _entry_source(self) -> dict[str, Any]:
        """Return the source of the entry file, or an error if it cannot be read at the moment."""
        project = self.session.project
        try:
            return self._source_message(project.entry_name)
        except RollerError as error:
            return {"file": project.entry_name, "text": "", "digest": "", "error": project.relative(str(error))}

    def _source_message(self, name: str) -> dict[str, Any]:
        found = self.session.project.read(name)
        return {"file": found.name, "text": found.text, "digest": found.digest}

    def _answer(self, data: str | bytes) -> dict[str, Any] | None:
        """Execute a client's request; return the response for that client alone, or ``None`` if there is none."""
        number: Any = None
        try:
            asked = check_client_messages.parse_message(data)
            kind, number = asked["type"], asked["id"]
            if kind == "profile":
                self.session.profile()
            elif kind == "live":
                self.session.set_live(asked["on"])
            elif kind == "options":
                self.session.set_options(
                    check_client_messages.options_of_message(asked["options"], {row["name"] for row in self._devices})
                )
            elif kind == "against":
                self.session.set_against(asked["what"])
            elif kind == "open":
                return {"type": "source", "id": number, **self._source_message(asked["file"])}
            elif kind == "save":
                saved = self.session.save(asked["file"], asked["text"], asked["base"])
                return {"type": "saved", "id": number, "file": saved.name, "digest": saved.digest}
        except RollerError as error:
            return {"type": "refused", "id": number, "text": self.session.project.relative(str(error))}
        return None


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """Close a socket; the reason is truncated to the limit of a close frame."""
    said = reason.encode(errors="replace")[:_REASON_BYTES].decode(errors="ignore")
    with contextlib.suppress(asyncio.TimeoutError):
        await await_with_limit(TAKES_S, socket.close(code, said))


def _rate_card_data(prices: RateCard | None) -> Mapping[str, Any] | None:
    if prices is None:
        return None
    return {
        "currency": prices.currency,
        "devices": {
            name: {"per_hour": rate.per_hour, "source": rate.source, "date": rate.date}
            for name, rate in prices.devices.items()
        },
    }  # fmt: skip
