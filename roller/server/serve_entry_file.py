"""Serves the page of one entry file until the process is interrupted."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.insight.rate_card import RateCard
from roller.server.check_client_messages import LARGEST_MESSAGE
from roller.server.live_profile_session import PATIENCE_S, Session
from roller.server.page_server import PageServer
from roller.server.profile_request import StepOptions
from roller.server.profiling_process_connections import WorkerProcesses
from roller.server.project_files import Project

#: Loopback addresses.
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    entry: str | Path, devices: Sequence[DeviceSpec], options: StepOptions, *, host: str = "127.0.0.1", port: int = 0,
    prices: RateCard | None = None, arguments: Sequence[str] = (), patience_s: float = PATIENCE_S,
    is_live: bool = True, specs: Mapping[str, str] | None = None, ready: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Serve the page of an entry file until the process is interrupted."""
    project = Project(entry)
    listening = listen_on(host, port)
    hosts = allowed_hosts(host, *listening.getsockname()[:2])

    async def run() -> None:
        processes = WorkerProcesses()
        session = Session(
            project, processes, options, arguments=arguments, is_live=is_live, patience_s=patience_s, specs=specs
        )
        page = PageServer(session, hosts, [device_facts(spec) for spec in devices], prices)
        config = uvicorn.Config(
            page.app, log_level="warning", access_log=False, ws="websockets-sansio", ws_max_size=LARGEST_MESSAGE,
            server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        ready(f"http://{hosts[0]}/?token={page.token}")
        try:
            await uvicorn.Server(config).serve([listening])
        finally:
            await processes.close()

    asyncio.run(run())


def allowed_hosts(host: str, address: str, port: int) -> tuple[str, ...]:
    """Return the host headers that a browser may send for the page; the first header is for the printed address.

    Examples
    --------
    >>> allowed_hosts("MyHost", "10.0.0.2", 8000)
    ('myhost:8000', '10.0.0.2:8000')
    >>> allowed_hosts("::1", "::1", 80)
    ('[::1]:80', '127.0.0.1:80', 'localhost:80', '[::1]', '127.0.0.1', 'localhost')
    """
    if ipaddress.ip_address(address).is_unspecified:
        raise RollerError(
            f"serve: --host {host}: expected one address of this machine, got all of them. Name the one that the "
            f"browser uses, or keep the default and forward its port over SSH."
        )
    name = host.lower()
    names = dict.fromkeys((name, address, *(_LOOPBACK if name in _LOOPBACK else ())))
    shown = [f"[{one}]" if ":" in one else one for one in names]
    return (*(f"{one}:{port}" for one in shown), *(shown if port == 80 else ()))  # browsers leave out port 80


def is_loopback_address(host: str) -> bool:
    """Return whether an address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def device_facts(spec: DeviceSpec) -> dict[str, Any]:
    """Return the name, description and capacity of a device for the page."""
    from roller.insight.memory.largest_batch import device_capacity_bytes

    return {"name": spec.name, "description": spec.description, "capacity_bytes": device_capacity_bytes(spec)}


def listen_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address; raise an error if the address is not free."""
    host = host.lower()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)  # browsers may connect before the page runs
    except (OSError, UnicodeError, ValueError) as error:
        made.close()
        why = getattr(error, "strerror", None) or error
        raise RollerError(
            f"serve: {host}:{port}: expected an address that is free, got {why}. Name another --host or --port."
        ) from None
    return made
