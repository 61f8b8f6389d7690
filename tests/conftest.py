"""Shared set-up: hypothesis draws the same examples in every run, and a slow machine is no failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import settings

#: Runs a command line; returns its exit code, standard output and standard error.
Cli: TypeAlias = Callable[..., tuple[int, str, str]]

settings.register_profile("roller", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("roller")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line; return its exit code, standard output and standard error."""
    from roller.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with warnings.catch_warnings(), pytest.raises(SystemExit) as done:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(str(done.value.code)), out, err

    return run
