"""A pack whose kernels are names only: what plans and rehearsals read, without building anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu import plan
from benchmarks.gpu.cards import Card, write_order
from benchmarks.gpu.plan import OPERATORS, PROBES, VARIANTS, Pack, Planned, Schedule
from roller.runtime.bundle_format import OperatorEntry, write_bundle
from roller.runtime.container_kinds import PROBES as PROBE_BUNDLE
from roller.runtime.probe_plan_format import ProbeCase, ProbePlan
from roller_runtime.storage.verified_container import write_container

CARDS = (Card("h100", "sm_90a", 132, 80_000_000_000), Card("h200", "sm_90a", 132, 141_000_000_000))


def entry(name: str, count: int) -> OperatorEntry:
    """Return an operator with so many candidates, ``a``, ``b`` and so on."""
    return OperatorEntry(name, name, "", "", 0, tuple("abcdefghijkl"[:count]), (1e-3,) * count, count)


def write_kernels(folder: Path, counts: Mapping[str, int]) -> str:
    """Write a bundle of kernels that are names only, alike for both cards; return its checksum."""
    spec = {"target": {"arch": "sm_90a"}, "content_key": "0"}
    header = {"device": "h100", "spec": spec, "template_version": 1, "options": {}, "code": "", "batch": None}
    bundle = write_bundle(folder, header, [(entry(name, count), b"") for name, count in counts.items()])["checksum"]
    for card in CARDS:
        order = {n: [(c, c, {"seconds": 1e-3}) for c in entry(n, count).candidates] for n, count in counts.items()}
        write_order(folder, card.name, bundle, spec, order)
    return str(bundle)


def write_probes(folder: Path, card: str, cases: int) -> str:
    """Write a bundle of one probe with so many cases; return its checksum."""
    made = ProbePlan("rates", "", (), 1, tuple(ProbeCase(f"case {n}", "k", 1, 32, (), 1e-6) for n in range(cases)))
    with write_container(folder) as work:
        sha256 = work.add("plans/rates.json", json.dumps(made.to_dict()).encode())
        rows = [{"name": "rates", "sha256": sha256, "key": made.key, "cases": cases, "image_sha256": None}]
        body = {"device": card, "language": "cuda", "arch": "sm_90a", "units": 132, "options": [], "plans": rows}
        return str(work.write_manifest(PROBE_BUNDLE, body)["checksum"])


def write_names(
    folder: Path, planned: Sequence[Planned], schedule: Schedule, variants: Mapping[str, int],
    ranks: Mapping[str, int], cases: int = 40,
) -> Pack:  # fmt: skip
    """Write a pack for both cards.

    Parameters
    ----------
    folder
        Must be there, and empty.
    planned, schedule
        Rows of operators, and what the run spends its time on.
    variants, ranks
        Kernels of small expressions, and candidates of operators, by id.
    cases
        Of probes.
    """
    parts = {VARIANTS: write_kernels(folder / VARIANTS, variants), OPERATORS: write_kernels(folder / OPERATORS, ranks)}
    (folder / PROBES).mkdir()
    parts |= {f"{PROBES}/{c.name}": write_probes(folder / PROBES / c.name, c.name, cases) for c in CARDS}
    held = tuple(p for p in planned if p.id in ranks)
    return plan.write_pack(Pack(folder, CARDS, "h100", "cuda", parts, held, (), schedule))
