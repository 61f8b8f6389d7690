"""Progress of a command: a bar on a terminal, otherwise a log line for every tenth of the steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from roller.cli.verbosity import is_quiet
from roller.errors import printable

_LOG = logging.getLogger(__name__)


def shows_progress_bar() -> bool:
    """Return whether to draw a bar, that is, whether standard error is a terminal and ``--quiet`` is not in effect."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_quiet()


class StepProgress:
    """Progress callback for finished steps and for the finished share of the current step."""

    def __init__(self, done: Callable[[str], None], within: Callable[[float], None] = lambda share: None) -> None:
        self._done, self._within = done, within

    def __call__(self, name: str) -> None:
        """Report a finished step."""
        self._done(name)

    def report_step_share(self, stage: str, part: int, whole: int) -> None:
        """Report the finished share of the current step's longest stage, pricing; other stages are ignored."""
        if stage == "price":
            self._within(part / whole)


@contextmanager
def track_progress(what: str, total: int) -> Iterator[StepProgress]:
    """Yield a callback that takes the name of each finished step; show the progress of ``total`` steps."""
    if not shows_progress_bar():
        done = 0

        def log_tenths(name: str) -> None:
            nonlocal done
            done += 1
            if done == 1 or done * 10 // total > (done - 1) * 10 // total:
                _LOG.info("%s: %d of %d (%s)", what, done, total, name)

        yield StepProgress(log_tenths)
        return
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(what), total=total)  # a script may start for long before its first step
        done = 0

        def step(name: str) -> None:
            nonlocal done
            done += 1
            bar.update(task, completed=done, description=printable(name))

        # Never a whole step: its end is reported separately.
        yield StepProgress(step, lambda share: bar.update(task, completed=done + min(share, 0.99)))
