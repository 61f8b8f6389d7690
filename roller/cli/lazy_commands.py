"""Commands of ``roller``; a command's module is imported only when it is used, so that the program starts quickly."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from roller.cli.report_provider_errors import with_provider_errors
from roller.cli.verbosity import with_verbosity

#: Command -> module and attribute, which is a function or, for a group, a ``typer.Typer``; in the order of ``--help``.
VERBS = {
    "compile": "roller.cli.compile:compile_command",
    "compile-model": "roller.cli.compile_model:compile_model_command",
    "construct": "roller.cli.construct:construct_command",
    "predict": "roller.cli.predict:predict_command",
    "forecast": "roller.cli.forecast:forecast_command",
    "profile": "roller.cli.profile:profile_command",
    "serve": "roller.cli.serve:serve_command",
    "lsp": "roller.cli.lsp:lsp_command",
    "init": "roller.cli.init:init_command",
    "report": "roller.cli.report:report_command",
    "memory": "roller.cli.memory:memory_command",
    "sweep": "roller.cli.sweep:sweep_command",
    "suite": "roller.cli.suite:suite_app",
    "compare": "roller.cli.compare:compare_command",
    "replay": "roller.cli.replay:replay_command",
    "record": "roller.cli.record:record_command",
    "whatif": "roller.cli.whatif:whatif_command",
    "lint": "roller.cli.lint:lint_command",
    "explain": "roller.cli.explain:explain_command",
    "devices": "roller.cli.devices:devices_command",
    "run-model": "roller.cli.run_model:run_model_command",
    "check": "roller.cli.check:check_command",
    "probe": "roller.cli.probe:probe_command",
    "sensitivity": "roller.cli.sensitivity:sensitivity_command",
    "doctor": "roller.cli.find_contradicted_spec_field:doctor_command",
    "env": "roller.cli.env:env_command",
    "bundle": "roller.cli.bundle:bundle_app",
    "cache": "roller.cli.cache:cache_app",
}
#: Exit code of a process ended by Ctrl-C, as in shells.
_INTERRUPTED = 130


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, from ``"module:attribute"``; each is imported and built on first access."""

    def __init__(self, homes: dict[str, str]) -> None:
        self._homes: dict[str, Any] = dict(homes)

    def __getitem__(self, name: str) -> Any:
        """Return a command; it is built at most once per process."""
        home = self._homes[name]
        return load_command(name, home) if isinstance(home, str) else home

    def __setitem__(self, name: str, command: Any) -> None:
        """Add a command that is already built."""
        self._homes[name] = command

    def __delitem__(self, name: str) -> None:
        """Remove a command."""
        del self._homes[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names without importing anything."""
        return iter(self._homes)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._homes)


class CommandGroup(TyperGroup):
    """Group of all commands; if the user interrupts one, it prints one line and exits with code 130."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(VERBS)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands; unlike Typer's own method, this does not build the commands."""
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(f"\nroller: {stop.args[0] if stop.args else 'interrupted.'}", err=True)
            raise typer.Exit(_INTERRUPTED) from None


@functools.cache
def load_command(name: str, home: str) -> Any:
    """Build the command for a function or a Typer group; add ``--quiet`` and ``--verbose`` to each command."""
    module, _, attribute = home.partition(":")
    target = getattr(importlib.import_module(module), attribute)
    if isinstance(target, typer.Typer):
        for verb in target.registered_commands:
            assert verb.callback is not None
            verb.callback = with_verbosity(verb.callback)
        return get_command(target)
    single = typer.Typer(add_completion=False)
    single.command(name)(with_verbosity(with_provider_errors(target)))
    return get_command(single)
