"""Reports errors in an entry file's providers, each as ``file:line: text``, or as JSON with ``--json``."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import typer

from roller.cli.verbosity import is_verbose
from roller.errors import ModelError, printable


def with_provider_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command so that, if an entry file's providers have errors, it lists them all and exits with code 1."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ModelError as error:
            from roller.insight.trace.entry_file_providers import ProviderErrors

            if not isinstance(error, ProviderErrors):
                raise
            _print_errors(error.rows(), as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(1) from error

    return run


def _print_errors(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if is_verbose():
        traceback.print_exc()
    if as_json:
        from roller.cli.shared_options_and_tables import print_json

        print_json({"errors": rows})
    for row in rows:
        typer.echo(f"roller: error: {printable('{file}:{line}: {text}'.format(**row))}", err=True)
