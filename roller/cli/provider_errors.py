"""Errors of providers as a list: one line each, ``file:line: text``, and as JSON beside ``--json``."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import typer

from roller.cli.verbosity import is_verbose
from roller.errors import ModelError, printable


def with_provider_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a verb that prints all that is wrong with the providers of an entry file, and exits with 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ModelError as error:
            from roller.insight.trace.providers import ProviderErrors

            if not isinstance(error, ProviderErrors):
                raise
            _tell(error.rows(), as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(1) from error

    return run


def _tell(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if is_verbose():
        traceback.print_exc()
    if as_json:
        from roller.cli.common import print_json

        print_json({"errors": rows})
    for row in rows:
        typer.echo(f"roller: error: {printable('{file}:{line}: {text}'.format(**row))}", err=True)
