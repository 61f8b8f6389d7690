"""Every place that loads a module by name has a rule, every rule is needed, and the graph holds all that runs load."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from functools import cache

import pytest

from roller.core.renamed import MODULES, PACKAGES
from tests.tools.whole_graph import ROOT, graph, repository
from tools.affected.dynamic_imports import FACADES, RULES, TABLES
from tools.affected.selection import reachable

#: Functions and methods that load a module by its name, whatever they are called on.
LOADERS = {"__import__", "entry_points", "exec_module", "import_module", "iter_modules", "module_for", "run_module",
           "run_path", "walk_packages"}  # fmt: skip
#: The project's own; loaders where they are imported from here.
LAZY = "roller.targets.lazy"
PROJECT = ("roller", "roller_runtime", "tests", "benchmarks", "examples", "tools")


def places_that_load(path: str, text: str) -> dict[str, list[str]]:
    """Return the functions of a file, ``file::qualified name``, that load by name, and the source of their calls."""
    found: dict[str, list[str]] = {}
    tree = ast.parse(text)
    lazy = {
        alias.asname or alias.name
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == LAZY
        for alias in node.names
    }  # fmt: skip

    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}

    def name_of(node: ast.AST) -> str:
        return getattr(node, "attr", getattr(node, "id", ""))

    def passes_on(node: ast.AST) -> bool:
        return (
            name_of(node) in LOADERS - {"module_for"}
            and isinstance(node, (ast.Attribute, ast.Name))
            and node not in called
        )

    def loads(call: ast.Call) -> bool:
        name = name_of(call.func)
        if name == "module_for" and isinstance(call.func, ast.Name):
            return False  # a function of that name: the method is of a kind of devices
        first = call.args[0] if call.args else None
        if (
            isinstance(first, ast.Constant)
            and name != "module_for"
            and str(first.value).partition(".")[0] not in PROJECT
        ):
            return False  # another package's
        return name in LOADERS or (isinstance(call.func, ast.Name) and name in lazy)

    def visit(node: ast.AST, names: tuple[str, ...]) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = (*names, node.name)
        if (isinstance(node, ast.Call) and loads(node)) or passes_on(node):
            place = "::".join([path, ".".join(names)]) if names else path
            found.setdefault(place, []).append(ast.unparse(node).replace("'", '"'))
        for child in ast.iter_child_nodes(node):
            visit(child, names)

    visit(tree, ())
    return found


@cache
def places() -> dict[str, list[str]]:
    """Return all places in the package that load by name; looks for a loader's name before it parses."""
    mentions = (LAZY, ".module_for(", *(LOADERS - {"module_for"}))
    found: dict[str, list[str]] = {}
    for path, text in repository().texts.items():
        if (
            path.startswith(("roller/", "roller_runtime/"))
            and path.endswith(".py")
            and any(name in text for name in mentions)
        ):
            found.update(places_that_load(path, text))
    return found


def test_places_that_load_by_name_are_found():
    text = (
        "import importlib, pkgutil\nfrom roller.targets.lazy import loaded as get\n"
        "def f(spec, name):\n    importlib.import_module('numpy.fft')\n    return spec.traits.module_for('walls')\n"
        "class C:\n    def g(self):\n        return get('roller.tile:RTile'), importlib.import_module(self.name)\n"
        "for _ in pkgutil.iter_modules([]): pass\ndef h(names):\n    return map(importlib.import_module, names)\n"
    )
    assert places_that_load("a.py", text) == {
        "a.py::f": ['spec.traits.module_for("walls")'],
        "a.py::C.g": ['get("roller.tile:RTile")', "importlib.import_module(self.name)"],
        "a.py": ["pkgutil.iter_modules([])"],
        "a.py::h": ["importlib.import_module"],
    }


def test_every_place_that_loads_by_name_has_a_rule():
    declared = {place for rule in RULES for place in rule.places}
    unknown = {
        place: calls for place, calls in places().items()
        if place not in declared and not all(any(r.is_asked(call) for r in RULES) for call in calls)
    }  # fmt: skip
    lines = [f"{place}: {call}" for place, calls in unknown.items() for call in calls]
    assert not lines, "give it a rule in tools/affected/dynamic_imports.py:\n" + "\n".join(lines)


def test_every_rule_has_an_asker_and_loads_a_module():
    sources = {p: t for p, t in repository().texts.items() if p.endswith(".py") and not TABLES.fullmatch(p)}
    sources = {p: t for p, t in sources.items() if not p.startswith(("tools/affected/", "tests/tools/"))}
    wrong = [f"{r.name}: no file asks" for r in RULES if r.askers and not any(map(r.is_asked, sources.values()))]
    wrong += [f"{r.name}: loads no module" for r in RULES if not any(map(r.loads, repository().modules))]
    wrong += [f"{r.name}: neither askers nor places" for r in RULES if not r.askers and not r.places]
    wrong += [f"{r.name}: {p} loads nothing by name" for r in RULES for p in r.places if p not in places()]
    wrong += [f"{path}: a facade that is not there" for path in FACADES if path not in repository().texts]
    assert not wrong, "\n".join(wrong)


def drawn() -> list[str]:
    tests = [p for p in repository().files if re.fullmatch(r"tests/(.*/)?test_\w+\.py", p)]
    return random.Random(2026).sample(tests, 10)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_what_a_test_file_loads_is_in_the_graph(number, tmp_path):
    path = drawn()[number]
    out = tmp_path / "loaded"
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "not slow",
        "-p",
        "tests.tools.loaded_modules",
        path,
    ]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "LOADED_MODULES": str(out)}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode in (0, 5), f"{path}: {done.stdout}{done.stderr}"
    # The root conftest.py, which every run has, is no ground for selecting every test.
    reached = reachable([path, f"{path}::doctests", "conftest.py", "tests/conftest.py"], graph())
    loaded = set(out.read_text().split()) - {*MODULES, *PACKAGES}  # former names have no file
    missing = sorted(m for m in loaded if repository().modules[m] not in reached)
    assert not missing, f"{path} loads {missing}: a rule of tools/affected/dynamic_imports.py lacks them"
