"""Lists installed packages whose version differs from the pinned one: ``python -m tools.newest constraints.txt``."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement


def pinned(lines: Iterable[str]) -> dict[str, str]:
    """Return ``{package: version}`` of the lines of a constraints file that hold for this Python and system.

    Examples
    --------
    >>> pinned(["numpy==2.4.6 ; python_version >= '3'", "numpy==1.0 ; python_version < '3'", "# a comment"])
    {'numpy': '2.4.6'}
    """
    rows = [Requirement(row) for row in lines if row.strip() and not row.startswith("#")]
    return {r.name: str(r.specifier).removeprefix("==") for r in rows if r.marker is None or r.marker.evaluate()}


def main() -> None:
    """Print a line for every package that differs."""
    for name, version in sorted(pinned(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()).items()):
        try:
            here = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if here != version:
            print(f"{name}: pinned {version}, installed {here}")


if __name__ == "__main__":
    main()
