"""Names in source text that imports do not show: dotted names, public names of roller, verbs, facades' functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from tools.affected.dynamic_imports import FACADES, SCRIPT_FOLDERS

#: Packages whose public names are loaded by a table.
PUBLIC = ("roller", "roller_runtime")
_DOCSTRING = re.compile(r"^[ \t]*r?\"\"\".*?\"\"\"", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"^[ \t]*(?:from [\w.]+ )?import .*", re.MULTILINE)
_EXAMPLE = re.compile(r"^[ \t]*(?:>>>|\.\.\.) (.*)", re.MULTILINE)
_BLOCK = re.compile(r"^[ \t]*```.*?^[ \t]*```|^::: .*", re.MULTILINE | re.DOTALL)
_DOTTED = re.compile(r"(?:roller_runtime|roller|benchmarks|tests|examples|tools)(?:\.\w+)+")
_FROM = re.compile(r"from ((?:roller_runtime|roller|benchmarks|tests|examples|tools)[\w.]*) import (\([^)]*\)|[\w, ]+)")
_TOP_LEVEL = re.compile(r"^[ \t]*(?:from|import) ([\w.]+)|import(?:orskip|_module)\([\"']([\w.]+)", re.MULTILINE)
_TABLE_ROW = re.compile(r'^    "([\w-]+)": "(roller[\w.]+)', re.MULTILINE)
_VERB = re.compile(r"[\"'`]([a-z-]+)[\"'`]|\broller ([a-z-]+)")


def code_of(text: str) -> str:
    """Return source text without docstrings and the first lines of imports, which the import graph has."""
    return _IMPORT.sub("", _DOCSTRING.sub("", text))


def examples_of(text: str) -> str:
    """Return the doctests of a source text."""
    return "\n".join(_EXAMPLE.findall(text))


def blocks_of(text: str) -> str:
    """Return the blocks of code of a Markdown page, and the names that its pages of the API document."""
    return "\n".join(_BLOCK.findall(text))


class Names:
    """Resolves names in source text to modules and to functions of facades.

    Parameters
    ----------
    modules
        Dotted names of all modules.
    homes
        Texts of the tables of public names, such as ``roller/__init__.py``, by package.
    verbs
        Text of the table of verbs, ``roller/cli/lazy_commands.py``.
    facades
        Names of the functions of each facade, by its path.
    """

    def __init__(
        self, modules: Collection[str], homes: Mapping[str, str], verbs: str, facades: Mapping[str, Collection[str]]
    ) -> None:
        self._modules = modules
        self._homes = {package: dict(_TABLE_ROW.findall(text)) for package, text in homes.items()}
        self._verbs = dict(_TABLE_ROW.findall(verbs))
        self._functions = {
            name.removesuffix(".py").replace("/", "."): (name, functions) for name, functions in facades.items()
        }
        calls = "|".join(sorted({f for functions in facades.values() for f in functions}))
        owners = "|".join({"roller", *(m.rpartition(".")[2] for m in self._functions)})
        self._facade_call = re.compile(rf"\b(?:{owners})\.({calls})\b")

    def around(self, name: str) -> Iterator[str]:
        """Yield the modules of a dotted name that exist: packages, the module, and the home of a public name."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            if module in self._modules:
                yield module
            if module in self._functions and end < len(parts):
                path, functions = self._functions[module]
                if parts[end] in functions:
                    yield f"{path}::{parts[end]}"
        homes = self._homes.get(parts[0], {})
        if len(parts) > 1 and parts[1] in homes:
            yield from self.around(f"{homes[parts[1]]}.{parts[1]}")

    def named(self, text: str) -> set[str]:
        """Return modules and functions of facades that attributes, strings and ``from`` imports name."""
        dotted = set(_DOTTED.findall(text))
        dotted.update(
            f"{base}.{name.split()[0]}"
            for base, names in _FROM.findall(text)
            for name in names.strip("()").split(",")
            if name.strip()
        )
        found = {m for name in dotted for m in self.around(name)}
        found |= {f"{FACADES[0]}::{name}" for name in self._facade_call.findall(text)}
        return found

    def scripts_in(self, path: str, text: str) -> set[str]:
        """Return modules of folders of scripts that a file imports without the folder's name."""
        folders = [
            f
            for f in SCRIPT_FOLDERS
            if path.startswith(f"{f}/") or ("sys.path" in text and re.search(rf"\b{f}\b", text))
        ]
        names = {name for pair in _TOP_LEVEL.findall(text) for name in pair if name} if folders else ()
        return {m for folder in folders for name in names for m in self.around(f"{folder}.{name}")}

    def verbs_in(self, text: str) -> set[str]:
        """Return the modules of the verbs that strings or shell commands name."""
        verbs = {v for pair in _VERB.findall(text) for v in pair if v in self._verbs}
        return {m for verb in verbs for m in self.around(self._verbs[verb])}

    def facade_calls(self, text: str, functions: Iterable[str]) -> set[str]:
        """Return which functions of a facade its own text calls."""
        return {f for f in functions if re.search(rf"\b{f}\(", text)}
