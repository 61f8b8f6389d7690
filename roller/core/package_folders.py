"""Locates the package's data folders, and makes the environment for subprocesses that import the package."""

from __future__ import annotations

import os
from pathlib import Path

from roller.errors import SpecError

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder(name: str) -> Path:
    """Return a data folder of the installed package or of the checkout."""
    for folder in (_PACKAGE / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise SpecError(f"{name}: expected the folder beside the package, found none. Reinstall roller.")


def environment_with_package() -> dict[str, str]:
    """Return an environment for subprocesses in which this package can be imported."""
    paths = [str(_PACKAGE.parent), *(p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
