"""Entries of the cache: the chosen kernel, the status of every candidate, and measurements."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from roller.artifact import KernelArtifact
from roller.errors import ArtifactError
from roller.expr.serialize import expr_to_dict
from roller.tile import RProgram


@dataclass(frozen=True)
class CachedCandidate:
    """A candidate of a compilation, with the fields of ``roller.Candidate``; ``estimate`` is plain data."""

    id: str
    program: RProgram
    estimate: dict[str, Any]
    status: str
    measured_s: float | None = None
    reason: str | None = None
    proved: str = ""


@dataclass(frozen=True)
class CacheEntry:
    """Result of one compilation: the chosen kernel and all candidates in rank order.

    Parameters
    ----------
    stored_at
        Time of storing, in seconds since the epoch; ``None`` for an entry that was not read from the cache.
    """

    artifact: KernelArtifact
    candidates: tuple[CachedCandidate, ...] = ()
    stored_at: float | None = field(default=None, compare=False)

    @property
    def measured(self) -> bool:
        """Whether the kernel was timed on its device without doubt, or was checked and there was no other choice."""
        if self.artifact.doubt:
            return False
        return self.artifact.measured_s is not None or any(c.status == "checked" for c in self.candidates)


@dataclass(frozen=True)
class Measurement:
    """A measured time of a program, kept permanently to validate the device's performance model.

    Parameters
    ----------
    candidate_id
        Identity of the program.
    spec_key, device
        Content key and name of the device spec that the program was constructed for.
    measured_s, predicted_s
        Measured (median) and predicted time per call, in seconds.
    status
        ``"measured"``, or ``"slower"`` for a single run.
    measured_at
        Time of the measurement, in seconds since the epoch.
    host
        :func:`host_fingerprint` of the machine.
    detail
        Further facts (GPU model, driver) as ``(name, text)`` pairs.
    """

    candidate_id: str
    spec_key: str
    device: str
    measured_s: float
    predicted_s: float | None
    status: str
    measured_at: float
    host: str
    detail: tuple[tuple[str, str], ...] = ()


def make_cache_entry(artifact: KernelArtifact, candidates: Iterable[Any]) -> CacheEntry:
    """Return the entry for a kernel and the candidates that it was chosen from."""
    rows = (
        CachedCandidate(c.id, c.program, c.estimate.to_dict(), c.status, c.measured_s, c.reason, c.proved)
        for c in candidates
    )
    return CacheEntry(artifact, tuple(rows))


def serialise_artifact(artifact: KernelArtifact) -> bytes:
    """Serialize an artifact; equal artifacts give equal bytes."""
    return json.dumps(artifact.to_dict(), separators=(",", ":")).encode()


def parse_artifact(data: bytes, where: str) -> KernelArtifact:
    """Read an artifact from the bytes of :func:`serialise_artifact`."""
    try:
        return KernelArtifact.from_dict(json.loads(data), where)
    except (UnicodeDecodeError, json.JSONDecodeError) as err:
        raise ArtifactError(f"{where}: expected a JSON artifact, got other data ({err}). Compile again.") from err


def serialise_candidates(candidates: Sequence[CachedCandidate]) -> str:
    """Serialize candidates as JSON; an expression shared by several programs is written once."""
    expressions: dict[str, int] = {}
    rows = []
    for c in candidates:
        program = c.program.to_dict()
        form = json.dumps(expr_to_dict(c.program.expr), sort_keys=True)
        program["expr"] = expressions.setdefault(form, len(expressions))
        known = [c.proved] if c.proved else []
        rows.append([c.id, program, c.estimate, c.status, c.measured_s, c.reason, *known])
    return json.dumps({"expressions": [json.loads(form) for form in expressions], "candidates": rows})


def parse_candidates(text: str, where: str) -> tuple[CachedCandidate, ...]:
    """Read candidates from the text of :func:`serialise_candidates`."""
    try:
        data = json.loads(text)
        expressions = data["expressions"]
        return tuple(
            CachedCandidate(name, RProgram.from_dict({**p, "expr": expressions[p["expr"]]}), estimate, *rest)
            for name, p, estimate, *rest in data["candidates"]
        )
    except (KeyError, TypeError, ValueError, IndexError) as err:
        if isinstance(err, ArtifactError):
            raise
        raise ArtifactError(f"{where}: candidates are malformed ({err!r}). Compile again.") from err


@cache
def host_fingerprint() -> str:
    """Return 16 characters that identify this machine without naming it."""
    parts = [os.uname().nodename, os.uname().machine] if hasattr(os, "uname") else []
    try:
        parts.append(Path("/etc/machine-id").read_text(encoding="ascii").strip())
    except (OSError, UnicodeDecodeError):  # not every system has one; then the host name alone identifies it
        parts.append("")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def measurements_of(spec_key: str, entry: CacheEntry) -> tuple[Measurement, ...]:
    """Return the times of an entry's candidates as measurements taken now on this machine."""
    now, host, device = time.time(), host_fingerprint(), entry.artifact.device
    return tuple(
        Measurement(c.id, spec_key, device, c.measured_s, c.estimate.get("seconds"), c.status, now, host)
        for c in entry.candidates
        if c.measured_s is not None and c.status != "doubtful"
    )


def with_expression(entry: CacheEntry, expression: Any) -> CacheEntry:
    """Return the entry with the caller's expression, because error messages use its names but the key does not."""
    return replace(entry, artifact=replace(entry.artifact, expression=expression))
