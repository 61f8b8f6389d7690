"""Helpers for the bundle commands: progress lines on standard output and one-line errors on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from roller.errors import RollerError, printable

Verb = Callable[[argparse.Namespace], int]


class Verifiable(Protocol):
    """An open bundle that can check its files."""

    def verify(self) -> str:
        """Read every file; return a description of the contents."""
        ...


def print_progress(line: str) -> None:
    """Print a line and flush it, so that the progress of a run is visible."""
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()


def verify(folder: Path, bundle: Verifiable) -> int:
    """Check every file of a bundle, print what it contains and return 0."""
    print_progress(f"{folder}: {bundle.verify()}, all as listed")
    return 0


def make_bundle_parser(
    prog: str, doc: str | None, device: str
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of a command that runs and verifies a folder, and the ``run`` parser, which callers extend."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=(doc or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="check and time everything; run again to continue after a kill")
    run.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    run.add_argument("--device", default="cuda:0", help=device)
    verify = verbs.add_parser("verify", help="check every file against the manifest; runs nothing")
    for verb in (run, verify):
        verb.add_argument("bundle", type=Path)
    return parser, run


def run_command(parser: argparse.ArgumentParser, verbs: Mapping[str, Verb], arguments: Sequence[str] | None) -> int:
    """Parse a command line and run its verb; return the exit code."""
    given = parser.parse_args(arguments)
    try:
        return verbs[given.verb](given)
    except RollerError as err:
        sys.stderr.write(f"bundle: error: {err}\n")
    except ModuleNotFoundError as err:
        missing = (err.name or "").partition(".")[0]
        sys.stderr.write(f"bundle: error: expected the package '{missing}', found none. 'pip install {missing}'.\n")
    except KeyboardInterrupt:
        sys.stderr.write("bundle: interrupted; run the same command again to continue\n")
    return 1
