"""Forgets loaded modules of one project that a file in another project must not import as its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

#: Modules that are never forgotten: the program itself, and this package, which another checkout may also contain.
_STAYS = ("__main__", __name__.partition(".")[0])


def forget_modules_of_other_projects(folder: Path, is_foreign: Callable[[str], bool]) -> None:
    """Forget loaded modules that have the same name as a module in a folder but come from another folder.

    Python looks up names among loaded modules first, so a second project with, say, a ``model.py`` would get the first
    project's ``model``.
    """
    names = {
        name for name, module in list(sys.modules.items()) if _shadows_project_module(name, module, folder, is_foreign)
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]


def _shadows_project_module(name: str, module: ModuleType, folder: Path, is_foreign: Callable[[str], bool]) -> bool:
    """Return whether a top-level module prevents the folder's module of the same name from being imported."""
    file = getattr(module, "__file__", None)
    if "." in name or name in _STAYS or not isinstance(file, str) or is_foreign(file):
        return False
    own = (folder / f"{name}.py", folder / name / "__init__.py")
    return any(one.is_file() for one in own) and not Path(file).resolve().is_relative_to(folder.resolve())
