"""What a probe is: a source of its own, the spec fields it measures, and three sentences anyone can check.

The sentences stand in the header of the source, where the code that must live up to them is, and nowhere else:

    Measures: ...
    Spoiled by: ...
    Proof: ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roller.errors import SpecError
from roller.probing.measured import Measured

_HEADS = {"Measures": "measures", "Spoiled by": "spoiled_by", "Proof": "proof"}


@dataclass(frozen=True)
class Statement:
    """What a probe's header says.

    Parameters
    ----------
    measures
        The quantity, with the model's meaning of it.
    spoiled_by
        What would make the result wrong, and what the probe does about it.
    proof
        How it shows that this quantity alone bounds its time.
    """

    measures: str
    spoiled_by: str
    proof: str


@dataclass(frozen=True)
class Finding:
    """What one run of a probe brought.

    Parameters
    ----------
    values
        By dotted spec path; only paths among the probe's ``fields``. One the schema does not know (yet) is shown and
        not written.
    remarks
        What a person should know: a sweep's best point, what could not be told apart.
    doubts
        Reasons by path why a value must not be written although its windows agree: a proof that failed.
    """

    values: Mapping[str, Measured]
    remarks: tuple[str, ...] = ()
    doubts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One probe.

    Parameters
    ----------
    name
        Short, e.g. ``"fma_peak"``.
    kind
        Kind of device it is for.
    fields
        Dotted spec paths it measures, e.g. ``"memory_layers.l2.bandwidth_bytes_per_s"``.
    source
        File below ``microbench/``; its header makes the :class:`Statement`.
    run
        Measures; its argument is the session of the kind (what compiles, pins, times).
    needs
        Names of probes whose findings it reads (the clock, say); they come first in the registry.
    """

    name: str
    kind: str
    fields: tuple[str, ...]
    source: str
    run: Callable[[Any], Finding] = field(compare=False, repr=False)
    needs: tuple[str, ...] = ()


def statement_of(source: Path) -> Statement:
    """Read the statement in the first comment of a probe's source."""
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
    return Statement(**{name: " ".join(part) for name, part in found.items()})
