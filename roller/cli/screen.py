"""A console for standard output that fits tables to its width."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

#: Width in columns of a file or a pipe unless ``COLUMNS`` sets it; larger than any table's.
PIPED_COLUMNS = 500
#: Spaces between cells, and before continuation lines below a row.
_GAP, _INDENT = "  ", "    "


class Screen(Console):
    """Console that prints a table's widest columns below each row if the table is too wide."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as Rich does, but rearrange tables that are too wide."""
        super().print(*(self._fit_table(o) if isinstance(o, Table) else o for o in objects), **options)

    def say(self, text: str) -> None:
        """Print sentences wrapped between words; never break a name or a command without spaces."""
        for line in textwrap.wrap(text, self.width, break_long_words=False, break_on_hyphens=False):
            self.print(line, soft_wrap=True)

    def _fit_table(self, table: Table) -> Table | Text:
        options = self.options.update(max_width=10_000)
        wanted = Measurement.get(self, options, table).maximum
        return table if wanted <= self.width else Text(stack_wide_columns(table, self.width), no_wrap=True)


def console() -> Screen:
    """Return the console for standard output, without markup; it is wide if standard output is not a terminal."""
    limited = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Screen(width=None if limited else PIPED_COLUMNS, highlight=False, markup=False)


def stack_wide_columns(table: Table, width: int) -> str:
    """Format a table in at most ``width`` columns; print cells that do not fit below their rows.

    Examples
    --------
    >>> table = Table("name", "about")
    >>> table.add_row("a", "a long tale of many words")
    >>> print(stack_wide_columns(table, 20).rstrip())
     name
     a
        about: a long
        tale of many
        words
    """
    columns = [(str(c.header), [str(cell) for cell in c.cells], c.justify) for c in table.columns]
    widths = [max(map(cell_len, (header, *cells))) for header, cells, _ in columns]
    kept = _columns_side_by_side(widths, [c[2] == "right" for c in columns], width)
    lines = textwrap.wrap(str(table.title or ""), width) + [""] * bool(table.title)
    lines.append(_row_line([columns[n][0] for n in kept], [widths[n] for n in kept], [columns[n][2] for n in kept]))
    for row in range(table.row_count):
        cells = [cells[row] for _, cells, _ in columns]
        lines.append(_row_line([cells[n] for n in kept], [widths[n] for n in kept], [columns[n][2] for n in kept]))
        below = [f"{columns[n][0]}: {cell}" for n, cell in enumerate(cells) if n not in kept and cell not in ("", "-")]
        for text in below:
            lines += textwrap.wrap(
                text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
            )
    lines += textwrap.wrap(str(table.caption or ""), width)
    return "\n".join([*lines, ""])


def _columns_side_by_side(widths: Sequence[int], numbers: Sequence[bool], width: int) -> list[int]:
    """Return the columns to print side by side: drop the widest texts, then the widest numbers; keep the first."""
    kept = list(range(len(widths)))
    while len(kept) > 1 and sum(widths[n] for n in kept) + len(_GAP) * (len(kept) - 1) >= width:
        kept.remove(max(reversed(kept[1:]), key=lambda n: (not numbers[n], widths[n])))
    return kept


def _row_line(cells: Sequence[str], widths: Sequence[int], justify: Sequence[str]) -> str:
    padded = []
    for cell, width, side in zip(cells, widths, justify, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(space + cell if side == "right" else cell + space)
    return " " + _GAP.join(padded).rstrip()
