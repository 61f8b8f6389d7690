"""What a run has brought so far, as a page for people: phases, kernels that are not right, headline operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.gpu.journal import RunJournal
from benchmarks.gpu.plan import OPERATORS, VARIANTS, Pack
from benchmarks.gpu.ranking import winners
from benchmarks.gpu.schedule import Part, Phase

FILE = "summary.txt"
#: Kernels that are not right, and characters of their reasons, that are shown.
_SHOWN, _WIDTH = 12, 160


def summary(pack: Pack, journal: RunJournal, phases: Sequence[Phase], parts: Sequence[Part]) -> str:
    """Return the page.

    Parameters
    ----------
    pack
        The pack.
    journal
        The results of all calls.
    phases
        All phases.
    parts
        What the phases of the last call were given and took.
    """
    ran = {p.name: p for p in parts}
    blocks = [f"{pack.device} on {journal.data.properties.get('name', 'an unknown device')}"]
    rows = [
        (p.name, f"{ran[p.name].budget_s:.0f}" if p.name in ran else "", f"{ran[p.name].spent_s:.0f}"
         if p.name in ran else "", f"{journal.data.spent_s[p.name]:.0f}", str(p.expected()))
        for p in phases
    ]  # fmt: skip
    blocks.append(_columns([("phase", "budget s", "took s", "all calls s", "left"), *rows]))
    blocks += [*journal.data.remarks, *(f"{n}: {why}" for n, why in journal.data.skipped.items())]
    for part in (VARIANTS, OPERATORS, "races"):
        records = [(o, c, r) for o, found in journal.data.records.get(part, {}).items() for c, r in found.items()]
        bad = [f"{o} {c}: {r.status}: {(r.reason.splitlines() or [''])[0][:_WIDTH]}" for o, c, r in records if not r.ok]
        if records:
            blocks.append("\n".join([f"{part}: {len(records) - len(bad)} of {len(records)} right", *bad[:_SHOWN]]))
    headline = _headline(pack, journal)
    return "\n\n".join([*blocks, *([_columns(headline)] if len(headline) > 1 else [])]) + "\n"


def _headline(pack: Pack, journal: RunJournal) -> list[tuple[str, ...]]:
    """Return a row per headline operator that was timed: our time, and the peers' times divided by it."""
    records, found = journal.data.records.get(OPERATORS, {}), [("headline", "ms", "torch/ours", "triton/ours")]
    best = winners(records)
    for operator in pack.schedule.headline:
        if operator not in best:
            continue
        seconds = records[operator][best[operator]].measured_s or 0.0
        rows = [p for kind in ("functional", "triton") for p in journal.data.peers.get(f"{operator}/{kind}", ())]
        ratios = {p["name"]: f"{p['ratio']:.3f}" if p["status"] == "measured" else p["status"] for p in rows}
        found.append((operator, f"{seconds * 1e3:.4g}", ratios.get("torch", ""), ratios.get("triton", "")))
    return found


def _columns(rows: Iterable[tuple[str, ...]]) -> str:
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(x.ljust(w) for x, w in zip(r, widths, strict=True)).rstrip() for r in table)
