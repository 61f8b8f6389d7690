"""Finds the model classes in a Python file and their constructor and ``forward`` arguments without running the file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from roller.errors import ModelError, did_you_mean, shown
from roller_runtime.core.files import read_text

#: Methods that count as training if a file calls them while it is imported.
_TRAINING = ("backward", "step", "fit", "train")


@dataclass(frozen=True)
class ModelClass:
    """A model class.

    Parameters
    ----------
    name, line
        Name and line number of the class.
    needed
        Constructor arguments without a default.
    inputs
        Arguments of ``forward`` without a default.
    """

    name: str
    line: int
    needed: tuple[str, ...]
    inputs: tuple[str, ...]


def find_model_class(path: Path, name: str | None = None) -> ModelClass:
    """Return a model class in a file: the named one, or the only one that no other class uses."""
    try:
        tree = ast.parse(read_text(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise ModelError(
            f"{path}: expected a Python file with a model, got one that cannot be read ({error}). Correct it."
        ) from error
    _check_no_training_at_import(tree, path)
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {key: node for key, node in nodes.items() if _find_method(node, "forward", nodes) is not None}
    if not found:
        raise ModelError(f"{path}: expected a class with a method forward, got none. Name the file of the model.")
    if name is None:
        used = {one.id for key, node in nodes.items() for one in _name_nodes_in_class(node) if one.id != key}
        outer = [key for key in found if key not in used]
        if len(outer) != 1:
            lines = ", ".join(f"{key} (line {found[key].lineno})" for key in outer or found)
            raise ModelError(f"{path}: expected one class of a model, got {lines}. Choose one: --class NAME.")
        name = outer[0]
    if name not in found:
        raise ModelError(
            f"{path}: expected a class {shown(name)} with a method forward, got {', '.join(found)}"
            f"{did_you_mean(name, found)}. Choose one of them."
        )
    constructor, forward = (_find_method(found[name], method, nodes) for method in ("__init__", "forward"))
    return ModelClass(name, found[name].lineno, _required_arguments(constructor), _required_arguments(forward))


def _find_method(node: ast.ClassDef, name: str, nodes: Mapping[str, ast.ClassDef]) -> ast.FunctionDef | None:
    """Return a method of a class or of a base class in the same file; ``None`` if there is none."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == name:
            return part
    bases = [nodes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in nodes]
    return next((found for base in bases if (found := _find_method(base, name, nodes)) is not None), None)


def _required_arguments(function: ast.FunctionDef | None) -> tuple[str, ...]:
    """Return the arguments of a method that have no default, excluding ``self``."""
    if function is None:
        return ()
    given = [*function.args.posonlyargs, *function.args.args][1:]
    positional = given[: len(given) - len(function.args.defaults)] if function.args.defaults else given
    named = [
        one for one, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if default is None
    ]
    return tuple(one.arg for one in (*positional, *named))


def _name_nodes_in_class(node: ast.ClassDef) -> Iterator[ast.Name]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Name))


def _check_no_training_at_import(tree: ast.Module, path: Path) -> None:
    """Raise an error for a file that trains when it is imported."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or _is_main_guard(node):
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING:
                raise ModelError(
                    f"{path}:{call.lineno}: expected a file that defines a model, got one that trains where it is "
                    f"imported ({call.func.attr}). Put that below if __name__ == '__main__', or profile the script "
                    f"itself: roller profile {path.name}."
                )


def _is_main_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and any(
        isinstance(one, ast.Name) and one.id == "__name__" for one in ast.walk(node.test)
    )
