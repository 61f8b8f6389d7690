"""``python -m tools.affected --since REVISION | FILE...``: the test files a change can reach, nearest first."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.affected.changes import SelectionError, changed_since
from tools.affected.selection import affected

ROOT = Path(__file__).resolve().parents[2]


def main(words: list[str] | None = None) -> int:
    """Print one line for each selected file: distance, file, and the files between it and the change."""
    parser = argparse.ArgumentParser(prog="python -m tools.affected", description=__doc__)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--since", metavar="REVISION", help="compare the working tree with this commit")
    given.add_argument("files", nargs="*", default=[], metavar="FILE", help="files taken as changed")
    chosen = parser.parse_args(words)
    try:
        changed = changed_since(chosen.since, ROOT) if chosen.since else [_in_repository(f) for f in chosen.files]
        found = affected(changed, ROOT)
    except SelectionError as error:
        print(error, file=sys.stderr)
        return 2
    for selected in found:
        print(selected)
    return 0


def _in_repository(name: str) -> str:
    path = Path(name).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name


if __name__ == "__main__":
    sys.exit(main())
