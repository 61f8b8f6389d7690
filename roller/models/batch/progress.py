"""Progress of a batch: events for callbacks, a progress bar for terminals, log lines otherwise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from roller.errors import printable

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """A progress event.

    Parameters
    ----------
    phase
        ``"cache"``, ``"construct"``, ``"build"`` or ``"time"``.
    done, total
        Numbers of finished kernels and of all kernels.
    label
        Name of the current kernel.
    """

    phase: str
    done: int
    total: int
    label: str = ""


#: Message on an interrupt if there is a cache.
GOES_ON = "Finished kernels are in the cache; the same command goes on from there."

OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignore the event."""


@contextmanager
def progress_callback(progress: OnProgress | bool | None) -> Iterator[OnProgress]:
    """Yield the callback for ``progress``: the given one, a bar, a logger, or one that ignores events."""
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
        with _progress_bar() as show:
            yield show
    elif progress is None:
        yield ProgressLogger()
    else:
        yield ignore_progress


class ProgressLogger:
    """Logs one line at the first event of a phase and after every tenth of the kernels."""

    def __init__(self) -> None:
        self._phases, self._tenth = set[str](), 0

    def __call__(self, progress: Progress) -> None:
        """Log the event if it begins a new phase or a new tenth."""
        tenth = progress.done * 10 // max(progress.total, 1)
        if progress.phase not in self._phases or tenth > self._tenth:
            self._phases.add(progress.phase)
            self._tenth = tenth
            _LOG.info("%s: %d of %d kernels done", progress.phase, progress.done, progress.total)


@contextmanager
def report_count_on_interrupt(progress: OnProgress, *, kept: bool) -> Iterator[OnProgress]:
    """Yield a callback; on an interrupt, report how many kernels were finished."""
    last = [Progress("read", 0, 0)]

    def record_event(event: Progress) -> None:
        last[0] = event
        progress(event)

    try:
        yield record_event
    except KeyboardInterrupt as stop:
        counts = f"; {last[0].done} of {last[0].total} kernels were done" if last[0].total else ""
        stop.args = (f"interrupted{counts}.{f' {GOES_ON}' if kept else ''}",)
        raise


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TextColumn("kernels"),
        TimeElapsedColumn(), TextColumn("{task.fields[label]}", markup=False),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=None, label="")
        yield lambda p: bar.update(task, description=p.phase, completed=p.done, total=p.total, label=printable(p.label))
