"""How far a batch is: events for whoever asks, one bar where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A step forward.

    Parameters
    ----------
    phase
        ``"cache"``, ``"construct"``, ``"build"`` or ``"time"``.
    done, total
        Kernels that are finished, of all.
    label
        What is worked on, for people.
    """

    phase: str
    done: int
    total: int
    label: str = ""


OnProgress = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Show nothing."""


@contextmanager
def shown(progress: OnProgress | bool | None) -> Iterator[OnProgress]:
    """Yield what takes the events.

    Parameters
    ----------
    progress
        A function that takes them; ``True`` for a bar on standard error, ``False`` for nothing, ``None`` for a bar
        where standard error is a terminal.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
        with _bar() as show:
            yield show
    else:
        yield silent


@contextmanager
def _bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TextColumn("kernels"),
        TimeElapsedColumn(), TextColumn("{task.fields[label]}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=None, label="")
        yield lambda p: bar.update(task, description=p.phase, completed=p.done, total=p.total, label=p.label)
