"""Entry point of the ``roller`` command: collects the verbs and turns errors into one line."""

from __future__ import annotations

import errno
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from roller import __version__
from roller.cli import bundle as bundle_verb
from roller.cli import cache as cache_verb
from roller.cli import check as check_verb
from roller.cli import compile as compile_verb
from roller.cli import compile_model as compile_model_verb
from roller.cli import construct as construct_verb
from roller.cli import devices as devices_verb
from roller.cli import doctor as doctor_verb
from roller.cli import env as env_verb
from roller.cli import explain as explain_verb
from roller.cli import predict as predict_verb
from roller.cli import probe as probe_verb
from roller.cli import run_model as run_model_verb
from roller.cli import sensitivity as sensitivity_verb
from roller.cli.common import UsageError
from roller.cli.operators import list_operators
from roller.cli.verbosity import QuietOption, VerboseOption, is_verbose, set_verbosity, start_telling, with_verbosity
from roller.errors import RollerError, RollerWarning, bounded

#: What asking for a path fails in, be it only whether something is there, where a user named none that can be.
_NO_PATH = (errno.ENAMETOOLONG, errno.EACCES)
#: Exit codes: docs/command-line-json.md says the same.
_EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed, with one line on standard error; 2 wrong usage, or a model with nodes "
    "that cannot be compiled; 130 interrupted."
)
#: Exit code of a process that Ctrl-C ended, as shells have it.
_INTERRUPTED = 130


class _Verbs(TyperGroup):
    """The verbs; an interrupt of any of them is one line that says what is left of the work."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(f"\nroller: {stop.args[0] if stop.args else 'interrupted.'}", err=True)
            raise typer.Exit(_INTERRUPTED) from None


app = typer.Typer(
    name="roller",
    cls=_Verbs,
    help="Construct, rank and compile tensor programs that are aligned with the hardware.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roller {__version__}")
        raise typer.Exit


def _operators(wanted: bool) -> None:
    if wanted:
        list_operators()
        raise typer.Exit


@app.callback()
def _options(
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    operators: Annotated[
        bool,
        typer.Option("--list-operators", callback=_operators, is_eager=True, help="Operators, arguments, epilogues."),
    ] = False,
) -> None:
    del version, operators  # handled by their callbacks
    set_verbosity(quiet=quiet, verbose=verbose)


app.command("compile")(compile_verb.compile_command)
app.command("compile-model")(compile_model_verb.compile_model_command)
app.command("construct")(construct_verb.construct_command)
app.command("predict")(predict_verb.predict_command)
app.command("explain")(explain_verb.explain_command)
app.command("devices")(devices_verb.devices_command)
app.command("run-model")(run_model_verb.run_model_command)
app.command("check")(check_verb.check_command)
app.command("probe")(probe_verb.probe_command)
app.command("sensitivity")(sensitivity_verb.sensitivity_command)
app.command("doctor")(doctor_verb.doctor_command)
app.command("env")(env_verb.env_command)
app.add_typer(bundle_verb.bundle_app)
app.add_typer(cache_verb.cache_app)
for _verbs in (app, bundle_verb.bundle_app, cache_verb.cache_app):
    for _verb in _verbs.registered_commands:
        assert _verb.callback is not None
        _verb.callback = with_verbosity(_verb.callback)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as a line: where in roller's sources it comes from tells a user nothing."""
    del filename, lineno, line
    told = category.__name__ if not issubclass(category, RollerWarning) else "warning"
    return f"roller: {told}: {message}\n"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Parameters
    ----------
    arguments
        Words after the program's name; those of the process by default.

    Raises
    ------
    SystemExit
        Always: 0 on success, 1 after a :class:`RollerError` or for a path that cannot be (one line on standard error),
        2 for a wrong usage, 130 after an interrupt.
    """
    warnings.formatwarning = _warning
    start_telling()
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
