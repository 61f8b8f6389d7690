"""Graph of what each file reaches: imports from ``grimp``, and the edges that the declared rules add."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import grimp
from grimp.exceptions import SourceSyntaxError

from tools.affected.changes import UnreadableFile
from tools.affected.data_files import RUNS_PAGES, DataFiles
from tools.affected.dynamic_imports import FACADES, RULES, TABLES
from tools.affected.names import PUBLIC, Names, blocks_of, code_of, examples_of

PACKAGES = ("roller", "roller_runtime", "tests", "benchmarks", "examples", "tools")
#: Node -> the nodes it reaches directly. A node is a file, a function of a facade (``file::name``) or the examples of
#: a module or a page (``file::doctests``).
Graph = dict[str, set[str]]
_FIXTURE = re.compile(r"@pytest\.fixture.*\n(?:@.*\n)*(?:async )?def (\w+)\(")


class Repository:
    """All files of a checkout, tracked or not ignored, with their texts."""

    def __init__(self, root: Path) -> None:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        self.root = root
        self.files = [p for p in sorted(set(listed.split("\0"))) if p and (root / p).is_file()]
        self.texts = {p: self._text(p) for p in self.files if p.endswith((".py", ".md"))}
        self.modules = {module_name(p): p for p in self.files if p.endswith(".py")}

    def _text(self, path: str) -> str:
        try:
            return (self.root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UnreadableFile(f"{path}: expected UTF-8, got {error.reason} at byte {error.start}.") from None


def module_name(path: str) -> str:
    """Return the dotted name of a Python file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def build_graph(repository: Repository) -> Graph:
    """Return what every file reaches directly.

    Raises
    ------
    UnreadableFile
        Where a file is no Python.
    """
    try:
        return _Builder(repository).graph
    except SourceSyntaxError as error:
        path = Path(error.filename).relative_to(repository.root).as_posix()
        raise UnreadableFile(f"{path}:{error.lineno}: expected Python, got {error.text!r}. Correct it first.") from None


class _Builder:
    """Adds the edges of all files to one graph."""

    def __init__(self, repository: Repository) -> None:
        self.graph: Graph = defaultdict(set)
        self._texts, self._modules = repository.texts, repository.modules
        with _first_on_path(repository.root):
            self._imports = grimp.build_graph(
                *(p for p in PACKAGES if (repository.root / p).is_dir()),
                exclude_type_checking_imports=True, cache_dir=None,
            )  # fmt: skip
        self._facades = {path: _functions(self._texts[path]) for path in FACADES}
        self._names = Names(
            self._modules,
            {p: self._texts[f"{p}/__init__.py"] for p in PUBLIC if f"{p}/__init__.py" in self._texts},
            self._texts["roller/cli/lazy_commands.py"],
            self._facades,
        )
        imported = {self._modules[m] for m in self._imports.modules if m in self._modules}
        self._data = DataFiles(p for p in repository.files if p not in imported)
        self._fixtures = {
            str(PurePosixPath(p).parent): (p, _fixtures_or_hooks(text))
            for p, text in self._texts.items()
            if p.endswith("/conftest.py")
        }
        self._loaded = [
            (r, {n for m in self._modules if r.loads(m) for n in self._names.around(m)}) for r in RULES if r.askers
        ]
        for path, text in self._texts.items():
            self._add_file(path, text)

    def _add_file(self, path: str, text: str) -> None:
        if path.endswith(".md"):
            self._add_examples(path, blocks_of(text))
            self._link(f"{path}::doctests", self._names.verbs_in(blocks_of(text)))
            self.graph[RUNS_PAGES].add(f"{path}::doctests")
            return
        functions = self._facades.get(path, {})
        self.graph[path] |= set()
        self._add_imports(path, module_name(path), functions)
        self._link(path, self._names.scripts_in(path, text))
        for name, (first, last) in functions.items():
            part = code_of("\n".join(text.splitlines()[first - 1 : last]))
            calls = self._names.facade_calls(part, functions.keys() - {name})
            self.graph[f"{path}::{name}"] |= {path, *(f"{path}::{f}" for f in calls)}
            self._add_text(f"{path}::{name}", path, part)
        self._add_text(path, path, _without(text, functions))
        if ">>>" in text:
            self._add_examples(path, examples_of(text))
            self.graph[f"{path}::doctests"] |= {f"{path}::{f}" for f in functions}

    def _add_examples(self, path: str, examples: str) -> None:
        node = f"{path}::doctests"
        self.graph[node].add(path)
        self._link(node, self._names.named(examples))
        self._add_rules(node, examples)

    def _add_imports(self, path: str, module: str, functions: dict[str, tuple[int, int]]) -> None:
        if module not in self._imports.modules:
            self._link(path, self._names.named(self._texts[path]))
            return
        for other in self._imports.find_modules_directly_imported_by(module):
            if other not in self._modules and other not in self._imports.modules:
                continue
            for node in self._importers(path, module, other, functions):
                target = self._modules.get(other)
                facade = target in self._facades and node != target
                named = self._facade_functions(target, self._texts[path]) if facade and target else set()
                self._link(node, set(self._names.around(other)))
                self.graph[node] |= named

    def _importers(self, path: str, module: str, other: str, functions: dict[str, tuple[int, int]]) -> set[str]:
        """Return the nodes of a file that import a module: in a facade the functions around the import's lines."""
        if not functions:
            return {path}
        lines = [d["line_number"] for d in self._imports.get_import_details(importer=module, imported=other)]
        around = [{f"{path}::{n}" for n, (a, b) in functions.items() if a <= line <= b} or {path} for line in lines]
        return set().union(*around)

    def _facade_functions(self, facade: str, text: str) -> set[str]:
        """Return the functions of a facade that an importer names; all of them where it names none."""
        functions = {f"{facade}::{name}" for name in self._facades[facade]}
        return self._names.named(text) & functions or functions

    def _add_text(self, node: str, path: str, text: str) -> None:
        if not TABLES.fullmatch(path):
            is_test = path.startswith("tests/")
            code = text if is_test else code_of(text)
            self._link(node, self._names.named(code))
            if is_test:
                self._link(node, self._names.verbs_in(text))
            self._add_rules(node, code)
            self.graph[node] |= self._data.read_by(path, code)
        for folder in PurePosixPath(path).parents:
            conftest = self._fixtures.get(str(folder))
            if conftest and conftest[1].search(text):
                self.graph[node].add(conftest[0])
        self.graph[node].discard(node)

    def _add_rules(self, node: str, text: str) -> None:
        for rule, modules in self._loaded:
            if rule.is_asked(text):
                self._link(node, modules)

    def _link(self, node: str, names: set[str]) -> None:
        """Add edges to modules, or functions of facades, by name."""
        self.graph[node].update(self._modules.get(name, name) for name in names)
        self.graph[node].discard(node)


def _fixtures_or_hooks(text: str) -> re.Pattern[str]:
    """Return what a test below a conftest.py has that needs it: a name of its fixtures, or nothing special."""
    needs_no_name = "autouse" in text or "def pytest_" in text
    return re.compile("" if needs_no_name else rf"\b({'|'.join(_FIXTURE.findall(text)) or '(?!)'})\b")


def _functions(text: str) -> dict[str, tuple[int, int]]:
    """Return the first and last line of every top-level function."""
    body = ast.parse(text).body
    return {n.name: (n.lineno, n.end_lineno or n.lineno) for n in body if isinstance(n, ast.FunctionDef)}


def _without(text: str, functions: dict[str, tuple[int, int]]) -> str:
    lines = text.splitlines()
    for first, last in functions.values():
        lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines) if functions else text


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Look for packages in a folder first, as grimp does along ``sys.path``."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
