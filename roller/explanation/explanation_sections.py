"""Builds the sections of an explanation."""

from __future__ import annotations

from collections.abc import Sequence

from roller.explanation.price_comparison import format_quantity, terms_with_distinct_values
from roller.explanation.program_facts import LayerUse, ProgramFact
from roller.explanation.reconstruct_construction_steps import ConstructionHistory
from roller.explanation.render_sections import ExplanationSection
from roller.explanation.roofline import Roofline
from roller.explanation.spec_change_effects import FieldEffect, shortest_number_text
from roller.explanation.why_not import UNTRIED, WhyNot
from roller.explanation.why_not_larger import EnlargementStop
from roller.perf import Term

#: Maximum printed depth of the term tree, and minimum printed share of the total.
_DEPTH, _SMALL = 8, 0.01
#: Legend for the growth steps.
_GROWTH = (
    "Tiles grow along the axes of best score (bytes of traffic saved per byte of footprint), the best few ways of each "
    "side by side; rows of 'shared' are threads of a block."
)


def construction_section(road: ConstructionHistory) -> ExplanationSection:
    """Return the section on construction steps."""
    rows = tuple(
        (s.layer, s.axis, f"{s.before} -> {s.after}", f"{s.score:.4g}", _format_reuse_scores(s.others))
        for s in road.steps
    )
    header = ("layer", "axis", "step", "score", "scores of others") if rows else ()
    return ExplanationSection("Construction", (*([_GROWTH] if rows else []), *road.words), header, rows)


def _format_reuse_scores(others: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{axis} {score:.4g}" for axis, score in others)


def enlargement_stops_section(found: Sequence[EnlargementStop]) -> ExplanationSection:
    """Return the section on why no tile is larger."""
    rows, faster = [], list[str]()
    for s in found:
        step = f"{s.now}" if s.why == "covered" else f"{s.now} -> {s.larger}"
        why = s.detail
        if s.percent is not None and s.seconds is not None:
            why = (
                f"{format_quantity(s.seconds, 's')} ({s.percent:+.1f} %): {s.detail}"
                if s.percent
                else "predicted alike"
            )
            if s.percent < 0:
                faster.append(s.axis)
                why = f"faster, {why}"
        rows.append((s.layer or "program", s.axis, step, why))
    said = f"Larger {' and '.join(dict.fromkeys(faster))} would be faster: {UNTRIED}." if faster else ""
    header = ("layer", "axis", "step", "what speaks against it")
    return ExplanationSection("Why nothing is larger", (said,) if said else (), header, tuple(rows))


def time_section(time: Term) -> ExplanationSection:
    """Return the section on the predicted time, as a tree of terms."""
    rows: list[tuple[str, ...]] = []
    _append_term_rows(time, time.value, 0, rows)
    return ExplanationSection("The predicted time, term by term",
                              ("Parts of less than 1 % are in --json, as all digits are.",),
                   ("term", "value", "made of its parts as"), tuple(rows))  # fmt: skip


def _append_term_rows(term: Term, whole: float, depth: int, rows: list[tuple[str, ...]]) -> None:
    """Append rows for a term and its significant parts; replace a part that has one decisive part with that part."""
    parts = [p for p in term.parts if p.unit != "s" or abs(p.value) >= _SMALL * whole]
    rule = "" if term.rule == "given" else term.rule
    rows.append(("  " * depth + term.name, format_quantity(term.value, term.unit), rule))
    for p in parts if depth < _DEPTH else ():
        while len(p.parts) == 1 or (p.rule == "largest" and p.value == max(x.value for x in p.parts)):
            inner = max(p.parts, key=lambda x: x.value)
            if not inner.parts:
                break
            p = inner
        _append_term_rows(p, whole, depth + 1, rows)


def layers_section(layers: Sequence[LayerUse]) -> ExplanationSection:
    """Return the section on bytes held and moved per memory layer."""
    rows = []
    for x in layers:
        tile = " ".join(f"{a}={n}" for a, n in x.tile.items() if n > 1) or "1" if x.tile is not None else "-"
        held = "-" if x.held is None else f"{x.held:.6g} of {x.capacity:.6g} {x.unit}"
        moved = "-" if x.moved_bytes is None else format_quantity(x.moved_bytes, "bytes")
        bandwidth = "-" if x.bandwidth_bytes_per_s is None else format_quantity(x.bandwidth_bytes_per_s, "bytes/s")
        rows.append(
            (x.name, tile, held, moved, bandwidth, "-" if x.seconds is None else format_quantity(x.seconds, "s"))
        )
    return ExplanationSection(
        "Memory, layer by layer", (), ("layer", "tile", "holds", "bytes", "bandwidth", "time"), tuple(rows)
    )


def occupancy_section(facts: Sequence[ProgramFact]) -> ExplanationSection:
    """Return the section on occupancy, waves and padding."""
    rows = []
    for f in facts:
        share = f.limit == 1.0 or f.name.startswith(("padding", "idle"))
        value = f"{100 * f.value:.3g} %" if share and f.name != "bank conflicts" else f"{f.value:.6g}"
        limit = "" if f.limit is None or share else f" of {f.limit:.6g}"
        rows.append((f.name, value + limit, f.note))
    return ExplanationSection("How it fills the device", (), ("what", "value", "note"), tuple(rows))


def roofline_section(r: Roofline) -> ExplanationSection:
    """Return the section on the roofline."""
    where = f"{r.intensity:.4g} operations per byte, the ridge is at {r.ridge:.4g}: under the roof of {r.bound}."
    peak, bandwidth = (
        format_quantity(r.peak_flops_per_s, "flops/s"),
        format_quantity(r.bandwidth_bytes_per_s, "bytes/s"),
    )
    stands = (
        f"No direct program beats {format_quantity(r.roof_s, 's')}; predicted is {100 * r.share:.3g} % of that roof."
    )
    above = []
    if r.share > 1.0:
        above.append(
            "More than the roof: it computes less than a direct sum does (Winograd), or finds in a cache what the roof "
            "counts from the slowest layer."
        )
    roof = f"Roof: {peak} ({r.pipe}, at {r.clock_hz / 1e9:.4g} GHz), {bandwidth}."
    return ExplanationSection("Under the roofline", (where, roof, stands, *above))


def dominant_terms_section(limits: Sequence[Term], effects: Sequence[FieldEffect]) -> ExplanationSection:
    """Return the section on dominant terms and possible improvements."""
    road = " <- ".join(f"{t.name} {format_quantity(t.value, t.unit)}" for t in terms_with_distinct_values(limits))
    rows = tuple(
        (
            x.field,
            f"{shortest_number_text(x.value)}{' (assumed)' if x.assumed else ''} -> {shortest_number_text(c.value)}",
            format_quantity(c.seconds[0], "s"),
            f"{c.percent:+.1f} %",
        )
        for x in effects
        if (c := x.best) is not None
    )
    sentences: tuple[str, ...] = (f"Most of the time goes down this road: {road}.",)
    if rows:
        sentences += ("Other numbers of the device that would lift it, constructed anew (`roller construct --set "
                      "FIELD=VALUE` shows the same):",)  # fmt: skip
    return ExplanationSection(
        "What limits it, and what would lift it", sentences, ("field", "value", "time", "change"), rows
    )


def next_candidates_section(rivals: Sequence[WhyNot]) -> ExplanationSection:
    """Return the section on the next candidates."""
    rows = []
    for w in rivals:
        last = w.road[-1] if w.road else None
        why = (
            ""
            if last is None
            else f"{last.name} {format_quantity(last.own, last.unit)} / {format_quantity(last.other, last.unit)}"
        )
        why = "predicted alike" if w.verdict == "equal" else why
        percent = f"{w.percent:+.2f} %" if w.percent is not None else "-"
        rows.append((w.asked, percent, why))
    return ExplanationSection("Why not the next candidates", (), ("program", "time", "asked / chosen"), tuple(rows))
