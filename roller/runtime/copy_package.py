"""Copies parts of roller, and roller_runtime, so that a folder runs without an installation."""

from __future__ import annotations

import shutil
from pathlib import Path

import roller_runtime


def copy_packages(folder: Path, floors: tuple[str, ...]) -> None:
    """Copy the top-level modules and ``floors`` of roller, and all modules of roller_runtime, into ``folder``."""
    package, runtime = Path(__file__).resolve().parents[1], Path(roller_runtime.__file__).resolve().parent
    shutil.copytree(runtime, folder / runtime.name, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    to = folder / package.name
    to.mkdir()
    for module in package.glob("*.py"):
        shutil.copy(module, to / module.name)
    for floor in floors:
        shutil.copytree(package / floor, to / floor, ignore=shutil.ignore_patterns("__pycache__"))
        for above in Path(floor).parents[:-1]:
            shutil.copy(package / above / "__init__.py", to / above / "__init__.py")
