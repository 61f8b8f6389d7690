"""Client settings: entry file, devices, and options of the profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roller.errors import RollerError, did_you_mean, printable, shown
from roller.hardware import list_specs
from roller.server.live_profile_session import PATIENCE_S
from roller.server.profile_request import StepOptions

_COUNTED = re.compile(r"(?:([1-9][0-9]{0,4})x)?(.+)", re.ASCII)
_AMPS = ("fp32", "fp16", "bf16")
_MOST_BATCH = 10**9
_NAMES = ("entry", "device", "batch", "amp", "checkpoint", "live", "runScripts", "arguments", "patience")
#: Names of settings that only clients read.
_OF_CLIENTS = ("python", "trace")
#: Maximum number of unknown settings to name in a message, and maximum length of a name in characters.
_MOST_SAID, _LONGEST_NAME = 5, 40


class SettingsError(RollerError):
    """Raised if a setting has an invalid value."""


@dataclass(frozen=True)
class Settings:
    """Settings of a client.

    Parameters
    ----------
    entry
        Path of the entry file relative to the workspace; ``""`` for the file for which a profile is requested.
    arguments
        Command-line arguments of a training script without providers.
    is_live
        Whether each save starts a new profile after the first one has been requested.
    patience_s
        Time in seconds without progress after which a profile is stopped.
    """

    entry: str = ""
    options: StepOptions = field(default_factory=StepOptions)
    arguments: tuple[str, ...] = ()
    is_live: bool = True
    runs_scripts: bool = False
    patience_s: float = PATIENCE_S

    def updated_from_json(self, data: Any) -> Settings:
        """Return the settings updated from a client's JSON; ignore unknown keys, but raise an error for bad values."""
        if data is None:
            return self
        if not isinstance(data, Mapping):
            raise SettingsError(f"settings: expected an object, got {shown(data)}.")
        options, made = self.options, self
        for name, value in data.items():
            if value is None:
                continue
            if name == "device":
                options = replace(options, devices=parse_device_setting(value))
            elif name == "batch":
                options = replace(options, batch=parse_whole_number(value, "batch"))
            elif name == "amp":
                options = replace(options, amp=_check_choice(value, name, _AMPS))
            elif name == "checkpoint":
                options = replace(options, checkpoint=_check_type(value, name, bool, "true or false"))
            elif name == "entry":
                made = replace(made, entry=_check_type(value, name, str, "a path"))
            elif name == "live":
                made = replace(made, is_live=_check_type(value, name, bool, "true or false"))
            elif name == "runScripts":
                made = replace(made, runs_scripts=_check_type(value, name, bool, "true or false"))
            elif name == "arguments":
                given = _check_type(value, name, list, "a list of text")
                made = replace(made, arguments=tuple(_check_type(x, name, str, "text") for x in given))
            elif name == "patience":
                made = replace(made, patience_s=_parse_seconds(value))
        return replace(made, options=options)


def unknown_settings_message(data: Any) -> str:
    """Return a message about the unknown keys in a client's JSON; ``""`` if there are none.

    Examples
    --------
    >>> unknown_settings_message({"devcie": "h100", "trace": {"server": "off"}})
    "roller.devcie: expected a setting of roller, got an unknown name; did you mean 'device'? It is ignored."
    """
    if not isinstance(data, Mapping):
        return ""
    unknown = [name for name in data if name not in (*_NAMES, *_OF_CLIENTS)][:_MOST_SAID]
    return " ".join(
        f"roller.{_truncate_name(name)}: expected a setting of roller, got an unknown name"
        f"{did_you_mean(name, _NAMES) or '.'} "
        f"It is ignored."
        for name in unknown
    )


def _truncate_name(name: Any) -> str:
    text = printable(str(name))
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "..."


def parse_device_setting(value: Any, where: str = "device") -> tuple[tuple[str, int], ...]:
    """Parse ``"h100,2xa100"`` or a list into device names and counts; ``where`` begins the error message.

    Examples
    --------
    >>> parse_device_setting("h100, 2xa100")
    (('h100', 1), ('a100', 2))
    """
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise SettingsError(f"{where}: expected names of devices, got {shown(value)}. Write e.g. h100,2xa100.")
    found, known = [], list_specs()
    for word in (word.strip() for word in words):
        match = _COUNTED.fullmatch(word) if word else None
        if match is None:
            continue
        count, name = match.groups()
        if name not in known:
            raise SettingsError(
                f"{where}: expected the name of a device, got {shown(name)}{did_you_mean(name, known) or '.'} "
                f"See roller devices."
            )
        found.append((name, int(count or 1)))
    if not found:
        raise SettingsError(f"{where}: expected names of devices, got {shown(value)}. Write e.g. h100,2xa100.")
    return tuple(dict.fromkeys(found))


def parse_whole_number(value: Any, name: str) -> int:
    """Return a positive whole number of samples as an integer; raise an error about ``name`` for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # some clients write all JSON numbers as floats
    if type(value) is not int or not 0 < value <= _MOST_BATCH:
        raise SettingsError(f"{name}: expected a whole number of at least 1, got {shown(value)}. Write e.g. 16.")
    return value


def _check_choice(value: Any, name: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise SettingsError(f"{name}: expected one of {', '.join(known)}, got {shown(value)}.")
    return str(value)


def _check_type(value: Any, name: str, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise SettingsError(f"{name}: expected {words}, got {shown(value)}.")
    return value


def _parse_seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 1e6:
        raise SettingsError(f"patience: expected seconds, at least 1, got {shown(value)}. Write e.g. 60.")
    return float(value)
