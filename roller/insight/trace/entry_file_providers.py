"""The three functions of an entry file: their names, whether a file has them, and any errors in them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roller.errors import ModelError, did_you_mean, shown
from roller.insight.trace.project_folder import path_in_project
from roller_runtime.core.files import read_text

#: Functions that an entry file defines.
PROVIDERS = ("model_provider", "input_provider", "iteration_provider")
#: Prefixes of names in files for DeepView and Skyline, which have the same providers.
_PREFIXES = ("", "deepview_", "skyline_")
#: How each function is called, and a matching definition.
_CALLS: Mapping[str, tuple[tuple[Any, ...], Mapping[str, Any], str]] = {
    "model_provider": ((), {}, "def model_provider()"),
    "input_provider": ((), {"batch_size": 1}, "def input_provider(batch_size=16)"),
    "iteration_provider": ((None,), {}, "def iteration_provider(model)"),
}


@dataclass(frozen=True)
class ProviderProblem:
    """One error in a provider.

    Parameters
    ----------
    file, line
        Location of the error; the path is relative to the project. Line 1 for a missing function.
    text
        Description of what was expected, what was found, and what to do.
    """

    file: str
    line: int
    text: str


class ProviderErrors(ModelError):
    """All errors in the providers of an entry file.

    Parameters
    ----------
    problems
        The errors, at least one, in line order.
    """

    def __init__(self, problems: Sequence[ProviderProblem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        if len(self.problems) == 1:
            super().__init__(f"{first.file}: {first.text}")
        else:
            found = " ".join(f"({n}) line {one.line}: {one.text}" for n, one in enumerate(self.problems, 1))
            super().__init__(f"{first.file}: expected three providers, got {len(self.problems)} errors: {found}")

    def rows(self) -> list[dict[str, Any]]:
        """Return the errors as JSON-ready data: ``file``, ``line`` and ``text`` for each."""
        return [asdict(problem) for problem in self.problems]

    @classmethod
    def from_json_rows(cls, rows: Sequence[Mapping[str, Any]]) -> ProviderErrors:
        """Create the errors from data returned by :meth:`rows`."""
        return cls([ProviderProblem(str(row["file"]), int(row["line"]), str(row["text"])) for row in rows])


def provider_aliases(provider: str) -> tuple[str, ...]:
    """Return the names of a provider: its own, and those used by other tools."""
    return tuple(prefix + provider for prefix in _PREFIXES)


def is_script(path: Path) -> bool:
    """Return whether a Python file is a program: it neither binds a provider's name nor uses ``import *``."""
    try:
        body = ast.parse(read_text(path)).body
    except (OSError, ValueError, SyntaxError, RecursionError):
        return False  # loading it as an entry file raises a better error
    bound = set(_names_bound_at_top_level(body))
    return "*" not in bound and not bound & {name for provider in PROVIDERS for name in provider_aliases(provider)}


def _names_bound_at_top_level(body: list[ast.stmt]) -> Iterator[str]:
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((a.asname or a.name) for a in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def bind_standard_provider_names(module: Any, path: Path) -> None:
    """Bind the standard provider names in a loaded entry file to its functions; raise an error if one is invalid."""
    problems = [problem for name in PROVIDERS for problem in _provider_problems(module, name, path)]
    if problems:
        raise ProviderErrors(sorted(problems, key=lambda one: one.line))


def _provider_problems(module: Any, name: str, path: Path) -> Iterator[ProviderProblem]:
    function = next((f for alias in provider_aliases(name) if callable(f := getattr(module, alias, None))), None)
    if function is None:
        taken = {alias for provider in PROVIDERS for alias in provider_aliases(provider)}  # these are not misspellings
        names = [known for known in vars(module) if known not in taken and callable(getattr(module, known))]
        yield ProviderProblem(
            path_in_project(path), 1,
            f"expected a function {name}, got none{did_you_mean(name, names) or '.'} Define {', '.join(PROVIDERS)}.",
        )  # fmt: skip
        return
    setattr(module, name, function)
    line = _definition_line(function, path)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a builtin has none
        signature = None
    args, kwargs, wanted = _CALLS[name]
    if name == "input_provider":
        default = None if signature is None else signature.parameters.get("batch_size")
        if default is None or not isinstance(default.default, int):
            got = "no such parameter" if default is None else shown(default.default)
            yield ProviderProblem(
                path_in_project(path), line,
                f"input_provider: expected a default of batch_size that is a number, got {got}. "
                f"Write {wanted}, or pass a batch.",
            )  # fmt: skip
            return
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            yield ProviderProblem(
                path_in_project(path), line, f"{name}: expected {wanted}, got {name}{signature}: {error}. Write it so."
            )


def _definition_line(function: Any, path: Path) -> int:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_firstlineno if code is not None and Path(code.co_filename) == path else 1
