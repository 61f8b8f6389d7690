"""Entry point of the ``roller`` command: global options and one-line error messages."""

from __future__ import annotations

import errno
import gc
import sys
import traceback
import warnings
from typing import Annotated

import typer

from roller import __version__
from roller.cli.lazy_commands import CommandGroup
from roller.cli.terminal_escaping import escape_terminal_output
from roller.cli.usage_error import UsageError
from roller.cli.verbosity import QuietOption, VerboseOption, attach_progress_handler, is_verbose, set_verbosity
from roller.errors import RollerError, RollerWarning, bounded

#: Errors of the operating system for a path that cannot exist or be read.
_NO_PATH = (errno.ENAMETOOLONG, errno.EACCES)
#: Exit codes, as in docs/command-line-json.md.
_EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed, with one line on standard error; 2 wrong usage, or a model with nodes "
    "that cannot be compiled; 130 interrupted."
)
#: Number of new objects that starts a garbage collection. Imported modules create 10^5 permanent objects, and a short
#: command ends before it leaves garbage; with Python's default of 700, collections take a seventh of its time.
_YOUNG_OBJECTS = 50_000

app = typer.Typer(
    name="roller",
    cls=CommandGroup,
    help="Construct, rank and compile tensor programs that are aligned with the hardware.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roller {__version__}")
        raise typer.Exit


def _print_operator_list(wanted: bool) -> None:
    if wanted:
        from roller.cli.operator_listing import print_operators  # the registry of operators, for this alone

        print_operators()
        raise typer.Exit


@app.callback()
def _apply_global_options(
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    operators: Annotated[
        bool,
        typer.Option(
            "--list-operators", callback=_print_operator_list, is_eager=True, help="Operators, arguments, epilogues."
        ),
    ] = False,
) -> None:
    del version, operators  # handled by their callbacks
    set_verbosity(quiet=quiet, verbose=verbose)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning as one line without its source location, which does not help users."""
    del filename, lineno, line
    details = category.__name__ if not issubclass(category, RollerWarning) else "warning"
    return f"roller: {details}: {message}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    warnings.formatwarning = _format_warning
    attach_progress_handler()
    with escape_terminal_output():
        _run_and_print_errors(arguments)


def _run_and_print_errors(arguments: list[str] | None) -> None:
    try:
        app(args=arguments, prog_name="roller")
    except RollerError as err:
        if is_verbose():
            traceback.print_exc()
        typer.echo(f"roller: error: {err}", err=True)
        sys.exit(2 if isinstance(err, UsageError) else 1)
    except OSError as err:
        if err.errno not in _NO_PATH or err.filename is None:
            raise
        path = bounded(str(err.filename))
        typer.echo(f"roller: error: {path}: cannot be looked at ({err.strerror}). Choose another path.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
