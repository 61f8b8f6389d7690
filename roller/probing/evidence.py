"""Measured programs of a device out of the cache of compiled kernels."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from roller.errors import ArtifactError
from roller.expr import TensorExpr
from roller.expr.serialize import expr_to_dict
from roller.probing.doctor import Observation
from roller.runtime.cache import KernelCache
from roller.runtime.cache_entry import candidates_of
from roller.runtime.cache_key import code_digest
from roller.runtime.disturbance import grouped
from roller.tile.program import RProgram


@dataclass(frozen=True)
class Evidence:
    """What the cache holds of a device.

    Parameters
    ----------
    observations
        Measured programs, the oldest kernels first.
    outdated
        Kernels that other sources of roller built, which are left out: their templates ran another way.
    doubtful
        Times that are left out because others disturbed them, by what they say of it, the most frequent first.
    """

    observations: tuple[Observation, ...]
    outdated: int
    doubtful: tuple[tuple[str, int], ...] = ()


def evidence_of(cache: KernelCache, device: str, *, outdated: bool = False) -> Evidence:
    """Return the measured candidates of all kernels that were compiled for a device.

    Candidates that were dropped after a single run, doubtful ones, and kernels for a share of the device are left out.
    """
    found: list[Observation] = []
    forms: dict[str, TensorExpr] = {}
    skipped, doubts = 0, list[str]()
    for row in cache.rows():
        if row.device != device:
            continue
        parts = json.loads(row.parts)
        if parts.get("options", {}).get("units") is not None:
            continue
        if parts.get("code") != code_digest() and not outdated:
            skipped += 1
            continue
        try:
            candidates = candidates_of(row.candidates, row.expression)
        except ArtifactError:  # whoever asks for the kernel is told
            continue
        doubts += [(c.reason or "").partition(" while ")[0] for c in candidates if c.status == "doubtful"]
        operator = f"{parts.get('expression')}/{parts.get('arguments')}"
        found += [
            Observation(operator, _shared(c.program, forms), c.measured_s)
            for c in candidates
            if c.status == "measured" and c.measured_s
        ]
    return Evidence(tuple(found), skipped, grouped(doubts))


def _shared(program: RProgram, forms: dict[str, TensorExpr]) -> RProgram:
    """Return the program on the one copy of its expression: those of one expression are priced together."""
    key = json.dumps(expr_to_dict(program.expr), sort_keys=True)
    return replace(program, expr=forms.setdefault(key, program.expr))
