"""A probe: its source, the spec fields that it measures, and its header (``Measures``, ``Spoiled by``, ``Proof``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller.errors import SpecError
from roller.probing.robust_window_statistics import MeasuredValue

_HEADS = {"Measures": "measures", "Spoiled by": "spoiled_by", "Proof": "proof"}


@dataclass(frozen=True)
class ProbeHeader:
    """The header of a probe's source."""

    measures: str  #: The quantity and its meaning in the model
    spoiled_by: str  #: Sources of error, and the probe's countermeasures
    proof: str  #: How the probe shows that this quantity alone bounds the probe's time


@dataclass(frozen=True)
class ProbeResult:
    """Result of one run of a probe."""

    #: Values by dotted spec path, all among the probe's ``fields``; paths outside the schema are shown, not written.
    values: Mapping[str, MeasuredValue]
    remarks: tuple[str, ...] = ()  #: Messages for people, such as the best point of a sweep
    #: Reasons by path why a value with consistent windows must not be written, such as a failed proof.
    doubts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One probe."""

    name: str
    kind: str
    fields: tuple[str, ...]  #: Dotted spec paths it measures, e.g. ``"memory_layers.l2.bandwidth_bytes_per_s"``.
    source: str  #: File below ``microbench/`` whose header gives the :class:`ProbeHeader`
    #: Function that measures, given a session for the device kind, which compiles, pins and times.
    run: Callable[[Any], ProbeResult] = field(compare=False, repr=False)
    needs: tuple[str, ...] = ()  #: Names of probes whose findings it reads; they come first in the registry


def read_probe_header(source: Path) -> ProbeHeader:
    """Return the statement from the first comment in a probe's source."""
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{source}: cannot read the probe ({err.strerror}). Reinstall roller.") from err
    comment = re.search(r"/\*(.*?)\*/", text, re.DOTALL)
    lines = [line.strip().lstrip("*").strip() for line in comment.group(1).splitlines()] if comment else []
    found: dict[str, list[str]] = {}
    current = ""
    for line in lines:
        head, colon, rest = line.partition(":")
        if colon and head in _HEADS:
            current, line = _HEADS[head], rest.strip()
        if not line:
            current = ""
        if current:
            found.setdefault(current, []).append(line)
    for head, name in _HEADS.items():
        if not found.get(name):
            raise SpecError(f"{source.name}: expected a line '{head}: ...' in the first comment, found none. Add it.")
    return ProbeHeader(**{name: " ".join(part) for name, part in found.items()})
