"""How far a command is: a bar where somebody watches, a line for every tenth where output goes to a file or a pipe."""

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


def watched() -> bool:
    """Whether a bar makes sense: standard error is a terminal, and progress is wanted."""
    return sys.stderr is not None and sys.stderr.isatty() and not is_quiet()


@contextmanager
def counted_steps(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yield what is told the name of each step as it is done.

    Parameters
    ----------
    what
        The work, for people.
    total
        How many steps there are.
    """
    if not watched():
        done = 0

        def tell(name: str) -> None:
            nonlocal done
            done += 1
            if done == 1 or done * 10 // total > (done - 1) * 10 // total:
                _LOG.info("%s: %d of %d (%s)", what, done, total, name)

        yield tell
        return
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=printable(name))
