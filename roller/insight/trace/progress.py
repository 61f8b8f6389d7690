"""Progress of tracing, pricing and sweeps, and how to cancel them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from roller.errors import RollerError


class Cancelled(RollerError):
    """The caller cancelled the work; whatever was priced until then is kept."""


class _ProgressListener(NamedTuple):
    listener: Callable[[str, int, int], None]
    is_cancelled: Callable[[], bool]


_WATCH: ContextVar[_ProgressListener | None] = ContextVar("watch", default=None)


@contextmanager
def listening(
    listener: Callable[[str, int, int], None] = lambda stage, done, total: None,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Report the progress of ``trace``, ``forecast`` and ``sweep`` within this context; optionally cancel them.

    Parameters
    ----------
    listener
        Called with the stage (``"trace"``, ``"price"``, ``"sweep"``), the number of finished operators or rows, and
        their total number, which is 0 while it is unknown, as in a trace.
    is_cancelled
        Called after each operator; if it returns true, the work raises :class:`Cancelled`. The ``is_set`` method of a
        ``threading.Event`` is suitable.

    Examples
    --------
    >>> with listening(lambda stage, done, total: print(stage, done, total)):
    ...     report_progress("price", 1, 2)
    price 1 2
    """
    token = _WATCH.set(_ProgressListener(listener, is_cancelled))
    try:
        yield
    finally:
        _WATCH.reset(token)


def report_progress(stage: str, done: int, total: int = 0) -> None:
    """Report the progress of a stage to the current listener; raise :class:`Cancelled` if the caller has cancelled."""
    watch = _WATCH.get()
    if watch is None:
        return
    watch.listener(stage, done, total)
    if watch.is_cancelled():
        raise Cancelled(f"{stage}: cancelled after {done}{f' of {total}' if total else ''}. Start it again.")
