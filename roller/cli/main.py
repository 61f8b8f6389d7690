"""Entry point of the ``roller`` command: collects the verbs and turns errors into one line."""

from __future__ import annotations

import errno
import sys
import warnings
from typing import Annotated

import typer

from roller import __version__
from roller.cli import bundle as bundle_verb
from roller.cli import cache as cache_verb
from roller.cli import compile as compile_verb
from roller.cli import compile_model as compile_model_verb
from roller.cli import construct as construct_verb
from roller.cli import devices as devices_verb
from roller.cli import doctor as doctor_verb
from roller.cli import explain as explain_verb
from roller.cli import predict as predict_verb
from roller.cli import probe as probe_verb
from roller.cli import run_model as run_model_verb
from roller.cli import sensitivity as sensitivity_verb
from roller.errors import RollerError, RollerWarning, bounded

#: What asking for a path fails in, be it only whether something is there, where a user named none that can be.
_NO_PATH = (errno.ENAMETOOLONG, errno.EACCES)

app = typer.Typer(
    name="roller",
    help="Construct, rank and compile tensor programs that are aligned with the hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"roller {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    del version  # handled by its callback


app.command("compile")(compile_verb.compile_command)
app.command("compile-model")(compile_model_verb.compile_model_command)
app.command("construct")(construct_verb.construct_command)
app.command("predict")(predict_verb.predict_command)
app.command("explain")(explain_verb.explain_command)
app.command("devices")(devices_verb.devices_command)
app.command("run-model")(run_model_verb.run_model_command)
app.command("probe")(probe_verb.probe_command)
app.command("sensitivity")(sensitivity_verb.sensitivity_command)
app.command("doctor")(doctor_verb.doctor_command)
app.add_typer(bundle_verb.bundle_app)
app.add_typer(cache_verb.cache_app)


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
        2 for a wrong usage.
    """
    warnings.formatwarning = _warning
    try:
        app(args=arguments, prog_name="roller")
    except RollerError as err:
        typer.echo(f"roller: error: {err}", err=True)
        sys.exit(1)
    except OSError as err:
        if err.errno not in _NO_PATH or err.filename is None:
            raise
        path = bounded(str(err.filename))
        typer.echo(f"roller: error: {path}: cannot be looked at ({err.strerror}). Choose another path.", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
