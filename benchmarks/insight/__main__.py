"""``python -m benchmarks.insight VERB``: each verb is the module of its name."""

from __future__ import annotations

import importlib
import importlib.util

import typer

VERBS = (
    "memory", "time", "trace", "batches", "cpu", "replay", "loader", "ddp", "handover", "goldens", "speed", "zoo",
    "kineto", "measured", "profiles", "editor", "published", "published_compiled", "memory_published",
)  # fmt: skip


def app() -> typer.Typer:
    """Return the verbs that are there."""
    found = typer.Typer(no_args_is_help=True, help=__doc__)
    for verb in VERBS:
        if importlib.util.find_spec(f"benchmarks.insight.{verb}") is not None:
            found.command(verb.replace("_", "-"))(importlib.import_module(f"benchmarks.insight.{verb}").main)
    if len(found.registered_commands) == 1:
        found.callback()(lambda: None)  # one verb alone is still a verb
    return found


if __name__ == "__main__":
    app()()
