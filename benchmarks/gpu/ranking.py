"""Which kernels won, and which operators deserve a look first; standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roller.runtime.bundle_format import OperatorEntry
from roller.runtime.candidate_records import Record

Records = Mapping[str, Mapping[str, Record]]


def winners(records: Records) -> dict[str, str]:
    """Return the fastest correct candidate of every operator that has one."""
    found = {o: _best(rows.values()) for o, rows in records.items()}
    return {o: r.candidate_id for o, r in found.items() if r is not None}


def _best(rows: Iterable[Record]) -> Record | None:
    timed = [r for r in rows if r.status == "measured" and r.measured_s]
    return min(timed, key=lambda r: (r.measured_s or math.inf, r.candidate_id), default=None)


def peer_ratio(peers: Mapping[str, Sequence[Mapping[str, Any]]], operator: str) -> float | None:
    """Return the time of an operator's fastest peer divided by ours; ``None`` where none was timed."""
    ratios = [
        float(p["ratio"]) for key, rows in peers.items() if key.rpartition("/")[0] == operator
        for p in rows if p["status"] == "measured"
    ]  # fmt: skip
    return min(ratios, default=None)


def worst(
    entries: Sequence[OperatorEntry], records: Records, peers: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[tuple[str, str]]:
    """Return operators and their fastest candidates, the furthest behind its peer or its prediction first."""
    best = winners(records)
    found = []
    for e in entries:
        if e.id not in best or best[e.id] not in e.candidates:
            continue
        measured = records[e.id][best[e.id]].measured_s or math.inf
        predicted = e.predicted_s[e.candidates.index(best[e.id])]
        ratio = peer_ratio(peers, e.id)
        found.append((min(ratio if ratio is not None else math.inf, predicted / measured), e.id, best[e.id]))
    return [(operator, candidate) for _, operator, candidate in sorted(found)]
