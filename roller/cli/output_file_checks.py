"""Checks a command's output files before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from roller.cli.shared_options_and_tables import check_writable
from roller.cli.usage_error import UsageError


def check_output_paths(read: Sequence[Path], outputs: Mapping[str, Path | None]) -> None:
    """Raise an error if an output cannot be written or is the same file as an input or another output."""
    taken = {path.resolve(): f"{path.name}, which is read" for path in read}
    for option, path in outputs.items():
        if path is None:
            continue
        check_writable(path)
        if (other := taken.setdefault(path.resolve(), option)) != option:
            raise UsageError(f"{option}: expected a file of its own, got that of {other}. Name another file.")
