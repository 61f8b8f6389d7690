"""``python -m benchmarks report``: what papers published beside what is measured and predicted here.

Every figure of ours is read from a file of ``results`` (or computed from one and a published table of ``reference``);
a cell without one says why there is none. ``--check`` exits with 1 where the page is not up to date. The rows are those
of ``benchmarks.reproduced``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common import markdown
from benchmarks.reproduced.changes import what_ifs
from benchmarks.reproduced.forecasts import boom, lines
from benchmarks.reproduced.operators import roller, sokoban
from benchmarks.reproduced.rows import RESULTS, Row
from benchmarks.reproduced.training import training

PAGE = RESULTS / "reproduction.md"
_COLUMNS = ("published", "theirs", "ours, measured", "ours, predicted", "from")
#: Title -> rows of the paper.
PAPERS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "Operators: Roller, OSDI 2022": roller, "Enumeration: Sokoban": sokoban, "Forecasts: BOOM": boom,
    "Changes of training: Daydream, ATC 2020": what_ifs, "Batches by a line: Skyline, UIST 2020": lines,
    "Training: TBD, 2018": training,
}  # fmt: skip


def page() -> str:
    """Return the page."""
    parts = [
        "Each figure of ours is measured on the machine at hand or **predicted without the device**, as its column "
        "says; a cell that begins with *no* says why there is no figure. Published figures depend on the "
        "frameworks and libraries of their time. `from` names the source file in `benchmarks/results`; files in "
        "`suites` are runs of `python -m benchmarks run SUITE --device NAME`."
    ]
    for title, rows in PAPERS.items():
        parts += [f"## {title}", markdown(_COLUMNS, (row[: len(_COLUMNS)] for row in rows()))]
    return "\n\n".join(parts) + "\n"


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where it would change.")] = False,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = PAGE,
) -> None:
    """Write the page of what is published beside what is measured and predicted here."""
    text = page()
    if not check:
        out.write_text(text, encoding="utf-8")
    elif not out.is_file() or out.read_text(encoding="utf-8") != text:
        sys.exit(f"{out}: not up to date. Run `python -m benchmarks report`.")


if __name__ == "__main__":
    typer.run(main)
