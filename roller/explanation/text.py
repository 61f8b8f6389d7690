"""An explanation for people: sections of sentences and small tables, as text and as HTML."""

from __future__ import annotations

import html as escaping
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from roller.explanation.compare import quantity, told
from roller.explanation.explanation import Explanation
from roller.explanation.spec_changes import written
from roller.explanation.why_not import UNTRIED, WhyNot
from roller.perf import Term
from roller.tile.alignment import RULES
from roller.tile.program import RProgram

#: Columns of a terminal nobody asked about.
WIDTH = 80
#: Levels of the tree of terms that are printed, and share of the whole below which a part is not.
_DEPTH, _SMALL = 8, 0.01
#: How to read the steps of growth.
_GROWTH = (
    "Tiles grow along the axes of best score (bytes of traffic saved per byte of footprint), the best few ways of each "
    "side by side; rows of 'shared' are threads of a block."
)


@dataclass(frozen=True)
class Section:
    """A heading, sentences, and a table."""

    title: str
    sentences: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def sections(e: Explanation) -> tuple[Section, ...]:
    """Return an explanation in the order it is told."""
    found = (_head(e), _road(e), _stops(e), _time(e), _layers(e), _device(e), _roof(e), _limits(e), _rivals(e))
    return tuple(s for s in found if s.sentences or s.rows)


def why_sections(w: WhyNot) -> tuple[Section, ...]:
    """Return what speaks against a program in the order it is told."""
    sentences = [f"asked: {w.asked}", *([f"program: {w.program}"] if w.program not in (None, w.asked) else [])]
    sentences += [f"chosen: {w.chosen}", *str(w).splitlines()]
    if w.budget:
        sentences.append(f"It runs, but exceeds a budget that construction keeps to: {w.budget}.")
    sentences += [f"It relaxes {rule_text(r)}" for r in w.relaxed]
    road = tuple((d.name, quantity(d.own, d.unit), quantity(d.other, d.unit)) for d in w.road)
    terms = tuple((d.name, quantity(d.own, d.unit), quantity(d.other, d.unit)) for d in w.terms)
    found = [Section("Why not", tuple(sentences))]
    if road:
        found.append(Section("Down to the cause", (), ("term", "asked", "chosen"), road))
        found.append(Section("Terms that differ", (), ("term", "asked", "chosen"), terms))
    return tuple(found)


def rule_text(rule: str) -> str:
    """Return an alignment rule in words."""
    return f"'{rule}': {(RULES[rule].__doc__ or rule).splitlines()[0].partition(': ')[2]}"


def _head(e: Explanation) -> Section:
    place = f"number {e.rank} of {e.candidates} candidates" if e.rank else "not among the constructed candidates"
    measured = f" Measured {quantity(e.measured_s, 's')}." if e.measured_s is not None else ""
    bound = e.estimate.bottleneck + "".join(f" (its {field} is assumed, not measured)" for field in e.bound_assumed)
    predicted = f"Predicted {quantity(e.estimate.seconds, 's')}{e.estimate.spread}, bound by {bound}.{measured}"
    relaxed = [f"It relaxes {rule_text(r)}" for r in e.program.relaxed]
    priced = [] if e.program.emitted else [not_emitted(e.program)]
    sentences = (f"{e.program} ({place})", predicted, *priced, *relaxed, *e.notes)
    return Section(f"{e.expression} on {e.description}", sentences)


def not_emitted(program: RProgram) -> str:
    """Return what a program without code is: a price."""
    assert program.fragment is not None
    return (
        f"It is priced alone: no template has code for '{program.fragment.name}'. `compile` makes a kernel without the "
        "matrix unit; construct for `spec.emitted` to see its price."
    )


def _road(e: Explanation) -> Section:
    rows = tuple(
        (s.layer, s.axis, f"{s.before} -> {s.after}", f"{s.score:.4g}", _scores(s.others)) for s in e.road.steps
    )
    header = ("layer", "axis", "step", "score", "scores of others") if rows else ()
    return Section("Construction", (*([_GROWTH] if rows else []), *e.road.words), header, rows)


def _scores(others: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{axis} {score:.4g}" for axis, score in others)


def _stops(e: Explanation) -> Section:
    rows, faster = [], list[str]()
    for s in e.stops:
        step = f"{s.now}" if s.why == "covered" else f"{s.now} -> {s.larger}"
        why = s.detail
        if s.percent is not None and s.seconds is not None:
            why = f"{quantity(s.seconds, 's')} ({s.percent:+.1f} %): {s.detail}" if s.percent else "predicted alike"
            if s.percent < 0:
                faster.append(s.axis)
                why = f"faster, {why}"
        rows.append((s.layer or "program", s.axis, step, why))
    said = f"Larger {' and '.join(dict.fromkeys(faster))} would be faster: {UNTRIED}." if faster else ""
    header = ("layer", "axis", "step", "what speaks against it")
    return Section("Why nothing is larger", (said,) if said else (), header, tuple(rows))


def _time(e: Explanation) -> Section:
    rows: list[tuple[str, ...]] = []
    _tree(e.time, e.time.value, 0, rows)
    return Section("The predicted time, term by term", ("Parts of less than 1 % are in --json, as all digits are.",),
                   ("term", "value", "made of its parts as"), tuple(rows))  # fmt: skip


def _tree(term: Term, whole: float, depth: int, rows: list[tuple[str, ...]]) -> None:
    """Add a term and what matters below it; a term that only passes on its one large part is left out."""
    parts = [p for p in term.parts if p.unit != "s" or abs(p.value) >= _SMALL * whole]
    rule = "" if term.rule == "given" else term.rule
    rows.append(("  " * depth + term.name, quantity(term.value, term.unit), rule))
    for p in parts if depth < _DEPTH else ():
        while len(p.parts) == 1 or (p.rule == "largest" and p.value == max(x.value for x in p.parts)):
            inner = max(p.parts, key=lambda x: x.value)
            if not inner.parts:
                break
            p = inner
        _tree(p, whole, depth + 1, rows)


def _layers(e: Explanation) -> Section:
    rows = []
    for x in e.layers:
        tile = " ".join(f"{a}={n}" for a, n in x.tile.items() if n > 1) or "1" if x.tile is not None else "-"
        held = "-" if x.held is None else f"{x.held:.6g} of {x.capacity:.6g} {x.unit}"
        moved = "-" if x.moved_bytes is None else quantity(x.moved_bytes, "bytes")
        bandwidth = "-" if x.bandwidth_bytes_per_s is None else quantity(x.bandwidth_bytes_per_s, "bytes/s")
        rows.append((x.name, tile, held, moved, bandwidth, "-" if x.seconds is None else quantity(x.seconds, "s")))
    return Section("Memory, layer by layer", (), ("layer", "tile", "holds", "bytes", "bandwidth", "time"), tuple(rows))


def _device(e: Explanation) -> Section:
    rows = []
    for f in e.facts:
        share = f.limit == 1.0 or f.name.startswith(("padding", "idle"))
        value = f"{100 * f.value:.3g} %" if share and f.name != "bank conflicts" else f"{f.value:.6g}"
        limit = "" if f.limit is None or share else f" of {f.limit:.6g}"
        rows.append((f.name, value + limit, f.note))
    return Section("How it fills the device", (), ("what", "value", "note"), tuple(rows))


def _roof(e: Explanation) -> Section:
    r = e.roof
    where = f"{r.intensity:.4g} operations per byte, the ridge is at {r.ridge:.4g}: under the roof of {r.bound}."
    peak, bandwidth = quantity(r.peak_flops_per_s, "flops/s"), quantity(r.bandwidth_bytes_per_s, "bytes/s")
    stands = f"No direct program beats {quantity(r.roof_s, 's')}; predicted is {100 * r.share:.3g} % of that roof."
    above = []
    if r.share > 1.0:
        above.append(
            "More than the roof: it computes less than a direct sum does (Winograd), or finds in a cache what the roof "
            "counts from the slowest layer."
        )
    roof = f"Roof: {peak} ({r.pipe}, at {r.clock_hz / 1e9:.4g} GHz), {bandwidth}."
    return Section("Under the roofline", (where, roof, stands, *above))


def _limits(e: Explanation) -> Section:
    road = " <- ".join(f"{t.name} {quantity(t.value, t.unit)}" for t in told(e.limits))
    rows = tuple(
        (
            x.field,
            f"{written(x.value)}{' (assumed)' if x.assumed else ''} -> {written(c.value)}",
            quantity(c.seconds[0], "s"),
            f"{c.percent:+.1f} %",
        )
        for x in e.lifts
        if (c := x.best) is not None
    )
    sentences: tuple[str, ...] = (f"Most of the time goes down this road: {road}.",)
    if rows:
        sentences += ("Other numbers of the device that would lift it, constructed anew (`roller construct --set "
                      "FIELD=VALUE` shows the same):",)  # fmt: skip
    return Section("What limits it, and what would lift it", sentences, ("field", "value", "time", "change"), rows)


def _rivals(e: Explanation) -> Section:
    rows = []
    for w in e.rivals:
        last = w.road[-1] if w.road else None
        why = "" if last is None else f"{last.name} {quantity(last.own, last.unit)} / {quantity(last.other, last.unit)}"
        why = "predicted alike" if w.verdict == "equal" else why
        percent = f"{w.percent:+.2f} %" if w.percent is not None else "-"
        rows.append((w.asked, percent, why))
    return Section("Why not the next candidates", (), ("program", "time", "asked / chosen"), tuple(rows))


def plain(found: Sequence[Section], width: int = WIDTH) -> str:
    """Return sections as text of a width."""
    parts = []
    for s in found:
        title = textwrap.wrap(s.title, width, break_on_hyphens=False)
        parts.append("\n".join([*title, "-" * max(map(len, title)), *lines_of(s, width)]))
    return "\n\n".join(parts)


def lines_of(s: Section, width: int = WIDTH) -> list[str]:
    """Return the sentences and the table of a section as lines of at most a width."""
    lines = [x for sentence in s.sentences for x in textwrap.wrap(sentence, width, break_on_hyphens=False)]
    return lines + (_table(s, width) if s.rows else [])


def _table(s: Section, width: int) -> list[str]:
    """Return a table; the widest column is wrapped so that all of them fit."""
    rows = [s.header, *s.rows]
    widths = [max(len(r[n]) for r in rows) for n in range(len(s.header))]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    while over > 0:
        widest = widths.index(max(widths))
        less = max(12, widths[widest] - over)
        if less == widths[widest]:
            break
        over -= widths[widest] - less
        widths[widest] = less
    lines = []
    for row in rows:
        cells = [_wrapped(text, w) for text, w in zip(row, widths, strict=True)]
        for n in range(max(len(c) for c in cells)):
            parts = (c[n] if n < len(c) else "" for c in cells)
            lines.append("  ".join(p.ljust(w) for p, w in zip(parts, widths, strict=True)).rstrip())
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    inner = text.lstrip()
    indent = " " * (len(text) - len(inner))
    return [indent + x for x in textwrap.wrap(inner, max(8, width - len(indent)), break_on_hyphens=False)] or [""]


def html(found: Sequence[Section]) -> str:
    """Return sections as HTML for a notebook."""
    out = ["<div>"]
    for s in found:
        out.append(f"<h4>{escaping.escape(s.title)}</h4>")
        out += [f"<p>{escaping.escape(x)}</p>" for x in s.sentences]
        if s.rows:
            head = "".join(f"<th style='text-align:left'>{escaping.escape(x)}</th>" for x in s.header)
            body = "".join(f"<tr>{''.join(_cell(x) for x in row)}</tr>" for row in s.rows)
            out.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "".join([*out, "</div>"])


def _cell(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    style = f"text-align:left;padding-left:{0.5 + indent * 0.6:.1f}em"
    return f"<td style='{style}'>{escaping.escape(text.strip())}</td>"
