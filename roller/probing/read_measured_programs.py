"""Reads the programs measured on a device from the kernel cache."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from roller.errors import ArtifactError
from roller.expr import TensorExpr
from roller.expr.serialize import expr_to_dict
from roller.probing.find_wrong_spec_field import MeasuredProgram
from roller.runtime.cache import KernelCache
from roller.runtime.cache_entry import parse_candidates
from roller.runtime.cache_key import source_code_digest
from roller.tile.program import RProgram
from roller_runtime.timing.disturbance import count_alike_texts


@dataclass(frozen=True)
class MeasuredPrograms:
    """Programs in the cache that were measured on a device."""

    observations: tuple[MeasuredProgram, ...]  #: Measured programs, oldest kernels first
    outdated: int  #: Number of kernels left out because a different version of roller's sources built them
    #: Reasons and counts of times left out because they were disturbed, most frequent first.
    doubtful: tuple[tuple[str, int], ...] = ()


def cached_measured_programs(cache: KernelCache, device: str, *, outdated: bool = False) -> MeasuredPrograms:
    """Return the measured candidates of all kernels compiled for the whole device."""
    found: list[MeasuredProgram] = []
    forms: dict[str, TensorExpr] = {}
    skipped, doubts = 0, list[str]()
    for row in cache.rows():
        if row.device != device:
            continue
        parts = json.loads(row.parts)
        if parts.get("options", {}).get("units") is not None:
            continue
        if parts.get("code") != source_code_digest() and not outdated:
            skipped += 1
            continue
        try:
            candidates = parse_candidates(row.candidates, row.expression)
        except ArtifactError:  # reported when the kernel is loaded
            continue
        doubts += [(c.reason or "").partition(" while ")[0] for c in candidates if c.status == "doubtful"]
        operator = f"{parts.get('expression')}/{parts.get('arguments')}"
        found += [
            MeasuredProgram(operator, _with_shared_expression(c.program, forms), c.measured_s)
            for c in candidates
            if c.status == "measured" and c.measured_s
        ]
    return MeasuredPrograms(tuple(found), skipped, count_alike_texts(doubts))


def _with_shared_expression(program: RProgram, forms: dict[str, TensorExpr]) -> RProgram:
    """Return the program with a shared copy of its expression: programs with one expression are priced together."""
    key = json.dumps(expr_to_dict(program.expr), sort_keys=True)
    return replace(program, expr=forms.setdefault(key, program.expr))
