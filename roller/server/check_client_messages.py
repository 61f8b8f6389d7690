"""Checks messages from clients of the live page; the protocol is in docs/server-protocol.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from roller.errors import RollerError, did_you_mean, shown
from roller.server.profile_request import StepOptions

#: Version of the messages; a client with a different version is refused with a reason.
VERSION = 1
#: Maximum size of a client's message in bytes.
LARGEST_MESSAGE = 8 << 20
_AMPS = ("fp32", "fp16", "bf16")
#: Maximum number of devices in a request, and of devices that share a batch.
_MOST_DEVICES, _MOST_ALIKE = 32, 4096
_MOST_BATCH = 10**9
_MOST_CHANGES = 32


class ProtocolError(RollerError):
    """Raised if a message violates the protocol."""


def parse_message(data: str | bytes) -> dict[str, Any]:
    """Parse a client's message and check its form; raise an error if it violates the protocol."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("message: expected JSON, got other text. See docs/server-protocol.md.") from None
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise ProtocolError("message: expected an object with a type, got another. See docs/server-protocol.md.")
    kind = found["type"]
    keys = _KEYS.get(kind)
    if keys is None:
        raise ProtocolError(
            f"message: expected one of {', '.join(_KEYS)}, got {shown(kind)}{did_you_mean(kind, _KEYS) or '.'}"
        )
    for name, (wanted, is_right) in keys.items():
        if name not in found or not is_right(found[name]):
            raise ProtocolError(f"{kind}: {name}: expected {wanted}, got {shown(found.get(name))}.")
    number = found.get("id")
    if number is not None and not isinstance(number, (int, str)):
        raise ProtocolError(f"{kind}: id: expected text or a whole number, got {shown(number)}.")
    return {"type": kind, **{name: found[name] for name in keys}, "id": number}


def options_of_message(data: Mapping[str, Any], devices: Collection[str]) -> StepOptions:
    """Return the options from a message whose form has been checked; raise an error for unknown devices."""
    for name, _ in data["devices"]:
        if name not in devices:
            raise ProtocolError(f"options: devices: expected a name, got {shown(name)}{did_you_mean(name, devices)}.")
    return StepOptions.from_data(data)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) < LARGEST_MESSAGE


def _is_options(value: Any) -> bool:
    if not isinstance(value, Mapping) or set(value) != {"devices", "batch", "amp", "checkpoint", "changes"}:
        return False
    devices, batch, changes = value["devices"], value["batch"], value["changes"]
    return (
        isinstance(devices, list) and 0 < len(devices) <= _MOST_DEVICES and all(map(_is_device, devices))
        and (batch is None or _is_whole(batch, _MOST_BATCH))
        and value["amp"] in _AMPS and isinstance(value["checkpoint"], bool)
        and isinstance(changes, list) and len(changes) <= _MOST_CHANGES and all(map(_is_text, changes))
    )  # fmt: skip


def _is_device(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_text(value[0]) and _is_whole(value[1], _MOST_ALIKE)


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 < value <= most


_Check = tuple[str, Callable[[Any], bool]]
_TEXT: _Check = ("text", _is_text)
#: Message type -> its keys, each with a description and a check of the value.
_KEYS: Mapping[str, Mapping[str, _Check]] = {
    "hello": {"version": ("a whole number", lambda value: type(value) is int)},
    "profile": {},
    "live": {"on": ("true or false", lambda value: isinstance(value, bool))},
    "options": {"options": ("devices, batch, amp, checkpoint and changes", _is_options)},
    "against": {"what": ("last or head", lambda value: value in ("last", "head"))},
    "open": {"file": _TEXT},
    "save": {"file": _TEXT, "text": _TEXT, "base": _TEXT},
}
