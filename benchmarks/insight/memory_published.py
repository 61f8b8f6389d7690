"""Published memory measurements beside what is predicted for the same steps.

``python -m benchmarks.insight memory-published FILE``: FILE is a table with columns model, setup, device, measured,
value, unit and source. Rows of today's releases of PyTorch and of older ones are summed up apart; a row that cannot be
built says why. Needs PyTorch, torchvision and timm.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.insight.memory_published_cases import ALSO, CASES, Case
from roller.errors import RollerError
from roller.insight.memory.simulate import MODEL_ERROR, Memory

#: Where ``--write`` puts the table.
RESULTS = Path(__file__).parents[1] / "results" / "insight_memory_published.md"
_MIB = 1 << 20
#: Letters of a unit -> bytes. PyTorch's own messages, and DeiT's log, write MB for MiB, as nvidia-smi's users do.
_UNITS = {"GB": 1e9, "MB": _MIB, "MiB": _MIB, "GiB": 1 << 30, "B": 1}


@dataclass(frozen=True)
class Result:
    """A published figure beside its prediction.

    Parameters
    ----------
    why
        What keeps a row from being built; ``""``: nothing.
    is_source
        Whether a specification has the figure itself, so that it does not count.
    reserved_bytes
        Predicted peak of what the step reserves, of which the model's error is a share.
    context_error_bytes
        Error of what the process holds beside it, in figures that have it.
    """

    model: str
    setup: str
    measured: str
    release: str
    is_of_today: bool
    value_bytes: float
    predicted_bytes: float = 0.0
    error_bytes: float = 0.0
    assumed: str = ""
    why: str = ""
    is_source: bool = False
    reserved_bytes: int = 0
    context_error_bytes: int = 0

    @property
    def has_context(self) -> bool:
        """Whether the figure is that of the vendor's monitor."""
        return "nvidia-smi" in self.measured

    @property
    def counts(self) -> bool:
        """Whether the prediction is judged by the figure."""
        return not self.why and not self.is_source

    @property
    def relative(self) -> float:
        """Signed error of the prediction."""
        return self.predicted_bytes / self.value_bytes - 1


def main(
    file: Path, *, write: bool = False, only: Annotated[str, typer.Option(help="Rows whose model has this text.")] = ""
) -> None:
    """Predict every row of a table of published memory."""
    found = [result(*row) for row in rows(file) if only in row[0]["model"]]
    table = Table("model", "setup", "figure", "release", "published GB", "predicted GB", "error", box=None)
    for r in found:
        ends = (f"{r.predicted_bytes / 1e9:.3f}", f"{100 * r.relative:+.1f} %") if not r.why else ("-", r.why)
        table.add_row(r.model, r.setup, r.measured, r.release, f"{r.value_bytes / 1e9:.3f}", *ends)
    Console(width=200).print(table)
    for line in summary(found):
        print(line)
    if write:
        RESULTS.write_text(page(found), encoding="utf-8")


def rows(file: Path) -> Iterator[tuple[dict[str, str], Case | None, float]]:
    """Yield every figure of a table: its row, its case, and its bytes."""
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        case, unit = CASES.get((row["model"], row["setup"])), row["unit"].split()[0]
        yield row, case, float(row["value"]) * _UNITS[unit]
        for text in re.findall(r"[^(),]+", row["unit"].partition("(")[2]):
            make = ALSO.get((row["model"], text.strip()))
            if case is not None and make is not None:
                size = float(text.split()[0]) * _UNITS[unit]
                yield {**row, "setup": f"{row['setup']}: {text.strip()}"}, replace(case, make=make), size


def result(row: dict[str, str], case: Case | None, size: float) -> Result:
    """Predict one figure."""
    if case is None:
        return Result(row["model"], row["setup"], row["measured"], "?", True, size, why="no such case: add one")
    found = Result(
        row["model"], row["setup"], row["measured"], case.release, case.is_of_today, size, assumed=case.assumed,
        is_source=case.is_source,
    )  # fmt: skip
    try:
        memory = case.make(case.device, case.release).memory(case.device)
    except (RollerError, ImportError) as error:
        return replace(found, why=str(error))
    if not memory.fits:
        return replace(found, why=f"does not fit: {memory.oom}")
    reserved = memory.peak.reserved_bytes
    context = memory.environment_error_bytes if found.has_context else 0
    return replace(
        found, predicted_bytes=figure(memory, row["measured"]), error_bytes=int(MODEL_ERROR * reserved) + context,
        reserved_bytes=reserved, context_error_bytes=context,
    )  # fmt: skip


def figure(memory: Memory, measured: str) -> float:
    """Return the predicted bytes of the figure that was measured."""
    if "nvidia-smi" in measured:
        return memory.total_bytes
    return memory.peak.reserved_bytes if "reserved" in measured else memory.peak.allocated_bytes


def summary(found: list[Result]) -> list[str]:
    """Return the mean absolute errors, of today's releases and of older ones."""
    lines = []
    for today, words, limit in ((True, "today's releases", 4), (False, "older releases", 8)):
        errors = [r.relative for r in found if r.is_of_today is today and r.counts]
        if errors:
            mean, signed = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
            lines.append(
                f"{words}: {100 * mean:.1f} % mean absolute error (limit {limit}), {100 * signed:+.1f} % signed, "
                f"{len(errors)} figures"
            )
    counted = [r for r in found if r.counts]
    within = sum(abs(r.predicted_bytes - r.value_bytes) <= r.error_bytes for r in counted)
    lines.append(
        f"{within} of {len(counted)} published figures lie in the predicted interval; the {100 * MODEL_ERROR:.0f} % "
        "of the reserved bytes that it allows are the mean error of these very figures"
    )
    within, judged = left_out_coverage(found)
    return [
        *lines,
        f"{within} of {judged} lie in the interval that allows the mean error of the other models' figures",
    ]


def left_out_coverage(found: list[Result]) -> tuple[int, int]:
    """Return how many figures lie in their interval if the model's error is taken from other models, and of how many.

    The error is the mean absolute one of the figures without a context; figures of one model are left out together.
    """
    counted = [r for r in found if r.counts]
    within = judged = 0
    for r in counted:
        others = [abs(o.relative) for o in counted if o.model != r.model and not o.has_context]
        if others:
            error_bytes = sum(others) / len(others) * r.reserved_bytes + r.context_error_bytes
            within += abs(r.predicted_bytes - r.value_bytes) <= error_bytes
            judged += 1
    return within, judged


def page(found: list[Result]) -> str:
    """Return the page of the results."""
    lines = [
        "# Published memory measurements, and what is predicted",
        "",
        "The table compares figures from public issue threads and from the documentation of models' repositories with",
        "the memory that `python -m benchmarks.insight memory-published FILE` predicts for the same step, with the",
        "release of PyTorch that the report names or its date implies. No parameter is fitted to a row.",
        "",
        "| model | setup | figure | release | published GB | predicted GB | error | taken where the report is silent |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in found:
        ends = f"{r.predicted_bytes / 1e9:.3f} | {100 * r.relative:+.1f} %" if not r.why else f"- | {r.why}"
        lines.append(
            f"| {r.model} | {r.setup} | {r.measured} | {r.release} | {r.value_bytes / 1e9:.3f} | {ends} | {r.assumed} |"
        )
    return "\n".join([*lines, "", *(f"{line}." for line in summary(found))]) + "\n"
