"""Renders sections of sentences and tables as text and as HTML."""

from __future__ import annotations

import html as escaping
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from roller.tile.alignment import RULES

#: Default width in columns.
WIDTH = 80


@dataclass(frozen=True)
class ExplanationSection:
    """Section with a title, sentences and a table."""

    title: str
    sentences: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def alignment_rule_text(rule: str) -> str:
    """Return an alignment rule's name and description."""
    return f"'{rule}': {(RULES[rule].__doc__ or rule).splitlines()[0].partition(': ')[2]}"


def render_text(found: Sequence[ExplanationSection], width: int = WIDTH) -> str:
    """Return sections as text with the given width."""
    parts = []
    for s in found:
        title = textwrap.wrap(s.title, width, break_on_hyphens=False)
        parts.append("\n".join([*title, "-" * max(map(len, title)), *section_text_lines(s, width)]))
    return "\n\n".join(parts)


def section_text_lines(s: ExplanationSection, width: int = WIDTH) -> list[str]:
    """Return a section's sentences and table as lines of at most ``width`` characters if they can be made to fit."""
    lines = [x for sentence in s.sentences for x in textwrap.wrap(sentence, width, break_on_hyphens=False)]
    return lines + (_table_lines(s, width) if s.rows else [])


def _table_lines(s: ExplanationSection, width: int) -> list[str]:
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
        cells = [_wrap_cell(text, w) for text, w in zip(row, widths, strict=True)]
        for n in range(max(len(c) for c in cells)):
            parts = (c[n] if n < len(c) else "" for c in cells)
            lines.append("  ".join(p.ljust(w) for p, w in zip(parts, widths, strict=True)).rstrip())
    return lines


def _wrap_cell(text: str, width: int) -> list[str]:
    inner = text.lstrip()
    indent = " " * (len(text) - len(inner))
    return [indent + x for x in textwrap.wrap(inner, max(8, width - len(indent)), break_on_hyphens=False)] or [""]


def render_html(found: Sequence[ExplanationSection]) -> str:
    """Return sections as HTML for a notebook."""
    out = ["<div>"]
    for s in found:
        out.append(f"<h4>{escaping.escape(s.title)}</h4>")
        out += [f"<p>{escaping.escape(x)}</p>" for x in s.sentences]
        if s.rows:
            head = "".join(f"<th style='text-align:left'>{escaping.escape(x)}</th>" for x in s.header)
            body = "".join(f"<tr>{''.join(_html_cell(x) for x in row)}</tr>" for row in s.rows)
            out.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return "".join([*out, "</div>"])


def _html_cell(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    style = f"text-align:left;padding-left:{0.5 + indent * 0.6:.1f}em"
    return f"<td style='{style}'>{escaping.escape(text.strip())}</td>"
