"""What the benchmarks share: rows of operators, published tables, sinks for results."""

from __future__ import annotations

import csv
import fnmatch
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.tables import read_table
from roller.cli.shared_options_and_tables import check_writable, console

HERE = Path(__file__).parent

FilterOption = Annotated[
    str, typer.Option("--filter", help="Comma-separated ids or patterns of operators, e.g. 'M*,C1?,D0'.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Also write the results to this file.")]
Row = dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """One limit: ``holds`` is ``None`` where nothing was measured that it could be judged by."""

    name: str
    limit: str
    value: str
    holds: bool | None

    @property
    def word(self) -> str:
        """``holds``, ``missed`` or ``not measured``."""
        return {True: "holds", False: "missed", None: "not measured"}[self.holds]


def operators(pattern: str = "*") -> list[Row]:
    """Return the rows of ``operators.yaml`` whose id matches one of the comma-separated patterns.

    Raises
    ------
    typer.BadParameter
        Where one of them matches nothing.
    """
    rows: list[Row] = read_table("operators.yaml")["operators"]
    patterns = [p.strip() for p in pattern.split(",")]
    for p in patterns:
        if not fnmatch.filter([r["id"] for r in rows], p):
            raise typer.BadParameter(f"--filter: expected ids like 'M0' or 'C*', none of {len(rows)} matches '{p}'.")
    return [r for r in rows if any(fnmatch.fnmatchcase(r["id"], p) for p in patterns)]


def reference(name: str) -> list[dict[str, str]]:
    """Return the rows of a published table (``reference/README.md`` says where it comes from)."""
    with (HERE / "reference" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def screen() -> Console:
    """Return the console results are printed on."""
    return console()


def check_outputs(*paths: Path | None) -> None:
    """Refuse output files that cannot be written, before the work that goes into them."""
    for path in paths:
        if path is not None:
            check_writable(path)


def write_json(path: Path | None, data: Any) -> None:
    """Write results as indented JSON, where a file was asked for."""
    if path is not None:
        path.write_text(json.dumps(data, indent=1) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table; the first column is text, the others are numbers to the right."""
    out = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for n, name in enumerate(columns):
        out.add_column(name, justify="left" if n == 0 else "right")
    for row in rows:
        out.add_row(*row)
    return out


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table.

    Examples
    --------
    >>> print(markdown(["id", "ms"], [("M0", "0.3")]))
    | id | ms |
    |---|---:|
    | M0 | 0.3 |
    """
    lines = [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(r)} |" for r in rows)])
