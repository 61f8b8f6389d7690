"""``roller env``: print versions, compilers, devices and cache for a bug report."""

from __future__ import annotations

import typer

from roller import __version__
from roller.cli.shared_options_and_tables import JsonOption, print_json
from roller.probing.environment import collect_environment, environment_text


def env_command(as_json: JsonOption = False) -> None:
    """Print what a bug report needs: versions, compilers, processor, GPUs, cache. Your home folder is written ~."""
    found = collect_environment(__version__)
    if as_json:
        print_json(found)
    else:
        typer.echo(environment_text(found))
