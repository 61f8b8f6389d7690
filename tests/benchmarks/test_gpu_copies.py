"""What a pack and a bundle of probes carry of the package holds everything that its modules import."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import roller
from benchmarks.gpu.pack import FLOORS, RUNNER
from roller.probing.gpu.run_or_bundle_probes import DRIVER
from roller.runtime.copy_package import copy_packages
from roller.targets import TARGETS

PACKAGE = Path(roller.__file__).parent


def imported(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, at once or later; not what only a type checker reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        inner for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body for inner in ast.walk(statement)
    }  # fmt: skip
    nodes = [n for n in ast.walk(tree) if n not in typing]
    found = {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    found |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    return {name for name in found if name.split(".")[0] == "roller"}


def reached(starts: set[str]) -> dict[str, str]:
    """Return every module that some modules lead to, with one that imports it."""
    found, waiting = dict.fromkeys(starts, "the command"), sorted(starts)
    while waiting:
        name = waiting.pop()
        path = PACKAGE.parent / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name == "roller" or not path.is_file():  # names of the package are loaded when they are asked for
            continue
        waiting += [n for n in imported(path) if n not in found]
        found |= {n: name for n in imported(path) if n not in found}
    return found


def is_copied(name: str, floors: tuple[str, ...]) -> bool:
    """Return whether a module, or the package of one, is in a copy: files at the top, floors, packages above them."""
    place = name.partition(".")[2].replace(".", "/")
    return (PACKAGE / f"{place.partition('/')[0]}.py").is_file() or any(
        f"{place}/".startswith(f"{floor}/") or f"{floor}/".startswith(f"{place}/") for floor in floors
    )


@pytest.mark.parametrize(("floors", "commands"), [
    (FLOORS, {"roller.runtime.bundle", "roller.models.session.bundle", "roller.runtime.worker"}),
    (DRIVER, {"roller.runtime.bundle", "roller.runtime.worker"}),
], ids=["pack", "probes"])  # fmt: skip
def test_a_copy_of_the_package_holds_what_it_imports(floors, commands):
    own = (PACKAGE.parent / "benchmarks" / "gpu" / f"{name}.py" for name in RUNNER) if floors is FLOORS else ()
    found = reached(commands | {n for path in own for n in imported(path)} | {
        text.partition(":")[0] for t in TARGETS for text in (t.launcher, t.worker, t.toolchain) if text
    })  # fmt: skip
    assert len(found) > 40
    missing = {
        f"{importer} imports {name}" for name, importer in found.items()
        if "." in name and not is_copied(name, floors)
    }  # fmt: skip
    assert not missing, "add their floors to what is copied"


def test_the_files_are_copied(tmp_path):
    copy_packages(tmp_path, ("core",))
    assert (tmp_path / "roller" / "__init__.py").is_file() and (tmp_path / "roller" / "core").is_dir()
    assert (tmp_path / "roller_runtime" / "core" / "files.py").is_file()
    assert not list(tmp_path.rglob("__pycache__")) and not (tmp_path / "roller" / "models").exists()
