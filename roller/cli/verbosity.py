"""Verbosity of messages on standard error: progress lines, notes and tracebacks. Results do not depend on it."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import typing
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from roller.errors import RollerWarning, printable

#: Logger of the package; progress has level INFO.
_LOG = logging.getLogger("roller")

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or warnings: results and errors.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Every finished step; errors with a traceback.")]


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Set the log level if ``quiet`` or ``verbose``; otherwise keep the one that earlier options have set."""
    if quiet and verbose:
        raise typer.BadParameter("expected --quiet or --verbose, got both. Leave one of them out.")
    if quiet:
        _LOG.setLevel(logging.ERROR)
        warnings.simplefilter("ignore", RollerWarning)
    elif verbose:
        _LOG.setLevel(logging.DEBUG)


def attach_progress_handler() -> None:
    """Print progress messages to standard error from now on, one per line; undo the log level of an earlier command."""
    for handler in [h for h in _LOG.handlers if isinstance(h, _StderrLineHandler)]:
        _LOG.removeHandler(handler)
    _LOG.addHandler(_StderrLineHandler())
    _LOG.setLevel(logging.INFO)


def is_quiet() -> bool:
    """Return whether only results and errors are to be printed; false by default."""
    return _LOG.level > logging.INFO


def is_verbose() -> bool:
    """Return whether all messages are to be printed."""
    return _LOG.getEffectiveLevel() <= logging.DEBUG


def with_verbosity(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command so that it also takes ``--quiet`` and ``--verbose``."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    plain = [p.replace(annotation=hints.get(p.name, p.annotation)) for p in parameters]
    more = {"quiet": QuietOption, "verbose": VerboseOption}

    @functools.wraps(command)
    def run(*arguments: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> Any:
        set_verbosity(quiet=quiet, verbose=verbose)
        return command(*arguments, **options)

    ours = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=a) for n, a in more.items()]
    run.__signature__ = inspect.Signature([*plain, *ours])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, **more}
    del run.__wrapped__  # otherwise inspect would return the signature of the wrapped command
    return run


class _StderrLineHandler(logging.Handler):
    """Handler that writes to the current standard error, even if it was replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line."""
        if sys.stderr is not None:
            sys.stderr.write(f"roller: {printable(self.format(record))}\n")
            sys.stderr.flush()
