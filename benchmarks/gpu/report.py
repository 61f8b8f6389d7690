"""Markdown tables of the operators: peers, limits, ceilings, ranks, every row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.gpu import limits
from benchmarks.gpu.statistic import geometric_mean, top_share
from roller.hardware import DeviceSpec


def against(ratios: Sequence[float]) -> tuple[str, ...]:
    """Return cells: geometric mean of peer / ours, shares faster and within 5, 10, 50 % of the peer.

    Examples
    --------
    >>> against([2.0, 0.96, 0.8, 0.5])
    ('4', '0.94', '25 %', '50 %', '50 %', '75 %')
    """
    if not ratios:
        return ("0", "", "", "", "", "")
    share = lambda slack: f"{100 * sum(r * (1 + slack) >= 1 for r in ratios) / len(ratios):.0f} %"  # noqa: E731
    faster = f"{100 * sum(r > 1 for r in ratios) / len(ratios):.0f} %"
    return (str(len(ratios)), f"{geometric_mean(ratios):.2f}", faster, *map(share, (0.05, 0.1, 0.5)))


def render(results: Mapping[str, Any], spec: DeviceSpec | None = None) -> str:
    """Return the tables as Markdown.

    ``spec`` is that of the device: with it, products are also given as a share of the ceiling of their instruction,
    which is a measured one where the specification was probed.
    """
    operators: Sequence[Mapping[str, Any]] = results["operators"]
    sets = list(dict.fromkeys(s for o in operators for s in o["sets"]))
    parts: list[str] = []
    names = list(dict.fromkeys(p["name"] for o in operators for p in o["peers"] if p["status"] == "measured"))
    for name in names:
        rows = [(s, *against([p["ratio"] for o in _of(operators, s) for p in _measured(o, name)])) for s in sets]
        columns = ("set", "operators", "geometric mean", "faster", "within 5 %", "within 10 %", "within 50 %")
        parts += [f"## Against {name}: its time divided by ours", table(columns, [r for r in rows if r[1] != "0"])]
    if not names:
        parts.append(f"No peer was timed: {results['peers']}.")
    judged = limits.verdicts(operators) if results["measured"] else []
    if judged:
        rows = [(v.name, v.limit, v.value, v.word) for v in judged]
        parts += ["## Limits", table(("ratio", "limit", "measured", "verdict"), rows)]
    if spec is not None:
        parts += ["## Share of the instruction's ceiling", _ceilings(operators, spec)]
    parts += ["## First prediction against the best of all candidates", _ranks(operators, sets)]
    parts += ["## Operators", _each(operators, names)]
    notes = [f"- {line}" for o in operators for line in _notes(o)]
    return "\n\n".join([*parts, *(["## Notes", "\n".join(notes)] if notes else [])])


def _ceilings(operators: Sequence[Mapping[str, Any]], spec: DeviceSpec) -> str:
    """Return the rate of every product on a matrix unit against the unit's, and where that number comes from."""
    rows = []
    for o in operators:
        kinds = {f.rate for f in spec.fragments if f.operand == o["row"]["dtype"]}
        if not kinds or not o["candidates"] or o["best_s"] is None or not o["row"].get("flops"):
            continue
        cells = [o["id"], f"{o['row']['flops'] / o['best_s'] / 1e12:.0f}"]
        for rate in ("matrix", "group_matrix"):
            key = f"{rate}.{o['row']['dtype']}"
            if rate not in kinds or key not in spec.compute.ops_per_cycle_per_unit:
                cells += ["", ""]
                continue
            source = spec.sources.get(f"compute.ops_per_cycle_per_unit.{key}", "override")
            peak = 2 * spec.ops_per_s(rate, o["row"]["dtype"])
            cells += [f"{100 * o['row']['flops'] / o['best_s'] / peak:.0f} %", source]
        rows.append(cells)
    columns = ("id", "TFLOP/s", "of one TEU's instruction", "which is", "of a group's instruction", "which is")
    return table(columns, rows)


def _notes(operator: Mapping[str, Any]) -> list[str]:
    """Return what differs from the published row, what failed and why."""
    name = operator["id"]
    out = [f"{name}: {n}" for n in (*operator["notes"], operator["left_out"]) if n]
    for p in operator["peers"]:
        if p["status"] != "skipped":
            why = f"{p['status']}: {p['reason'].splitlines()[-1]}" if p["reason"] else ""
            out += [f"{name}: {p['name']}: {text}" for text in (p["note"], why) if text]
    for c in operator["candidates"]:
        if c["status"] not in ("measured", "slower") and c["reason"]:
            out.append(f"{name} rank {c['rank']}: {c['status']}: {c['reason'].splitlines()[0]}")
    return out


def _of(operators: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [o for o in operators if name in o["sets"]]


def _measured(operator: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [p for p in operator["peers"] if p["name"] == name and p["status"] == "measured"]


def _ranks(operators: Sequence[Mapping[str, Any]], sets: Sequence[str]) -> str:
    rows = []
    for s in sets:
        members = [o for o in _of(operators, s) if o["candidates"]]
        shares = [x for x in map(top_share, members) if x is not None]
        if not shares:
            continue
        records = [c for o in members for c in o["candidates"]]
        correct = sum(c["status"] in ("measured", "slower") for c in records)
        errors = sorted(
            abs(c["predicted_s"] / c["measured_s"] - 1)
            for o in members for c in o["candidates"] if c["candidate_id"] == o["best"]
        )  # fmt: skip
        rows.append((s, str(len(members)), f"{correct}/{len(records)}", f"{geometric_mean(shares):.3f}",
                     f"{100 * sum(x >= 1 for x in shares) / len(shares):.0f} %",
                     f"{100 * statistics.median(errors):.0f} %"))  # fmt: skip
    columns = ("set", "operators", "correct candidates", "best / top-1", "top-1 is best", "median error of the model")
    return table(columns, rows)


def _each(operators: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    rows = []
    for o in operators:
        best = next((c for c in o["candidates"] if c["candidate_id"] == o["best"]), None) if o["candidates"] else None
        cells = [o["id"], o.get("expression", "")]
        if best is None:
            cells += ["", "", "", ""]
        else:
            flops = o["row"].get("flops")
            rate = f"{flops / o['best_s'] / 1e12:.2f}" if flops else ""
            cells += [f"{o['best_s'] * 1e3:.4g}", f"{best['predicted_s'] * 1e3:.4g}", str(best["rank"]), rate]
        for n in names:
            found = _measured(o, n)
            cells += [f"{found[0]['median_s'] * 1e3:.4g}", f"{found[0]['ratio']:.2f}"] if found else ["", ""]
        rows.append(cells)
    columns = ["id", "expression", "best ms", "predicted ms", "rank", "TFLOP/s"]
    return table([*columns, *(c for n in names for c in (f"{n} ms", f"{n} / ours"))], rows)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    lines = [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(r)} |" for r in rows)])
