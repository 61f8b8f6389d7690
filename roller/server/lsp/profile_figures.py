"""Figures of a profile for a document: for its lines, for the modules that a line calls, and for classes."""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roller.insight.step_profile.lines import Line
from roller.insight.step_profile.node import Node
from roller.insight.step_profile.profile_json import profile_from_json_data
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.trace.entry_file_providers import provider_aliases

_STEP = provider_aliases("iteration_provider")


@dataclass(frozen=True)
class PartFigures:
    """Time and memory of a module or class.

    Parameters
    ----------
    name
        Path of a module, or name of a class.
    wall_s
        Part of the step's time, in seconds, that the module or class takes.
    held_bytes
        Bytes held when total memory is at its peak.
    instances
        Paths of the module instances.
    """

    name: str
    wall_s: float
    held_bytes: int
    instances: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProfileFigures:
    """Profile arranged by the lines of documents.

    Parameters
    ----------
    data
        Data of the session's stage ``"profile"``.
    texts
        Text of each profiled file by name.
    kernels
        For each line, the kernel that takes longest and its time in seconds.
    calls, classes
        Modules that a line calls, and instances of a class, each by file and line.
    steps
        Line of the step function by file.
    """

    profile: StepProfile
    data: Mapping[str, Any]
    revision: int
    texts: Mapping[str, str]
    lines: Mapping[str, Mapping[int, Line]] = field(default_factory=dict)
    kernels: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    calls: Mapping[tuple[str, int], tuple[PartFigures, ...]] = field(default_factory=dict)
    classes: Mapping[tuple[str, int], PartFigures] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any], revision: int, texts: Mapping[str, str], entry: str) -> ProfileFigures:
        """Compute the figures from the data of stage ``"profile"``; ``entry`` is the entry file's name."""
        profile = profile_from_json_data(data["profile"])
        lines: dict[str, dict[int, Line]] = {}
        kernels = {}
        for line in profile.lines:
            lines.setdefault(line.file, {})[line.line] = line
            kernel = _costliest_kernel(line)
            if kernel is not None:
                kernels[line.name] = kernel
        classes = {name: class_line_ranges(text) for name, text in texts.items()}
        return cls(
            profile, data, revision, texts, lines, kernels, _modules_called_by_lines(profile.root),
            _sum_by_class(profile.root, classes), {entry: iteration_provider_line(texts.get(entry, ""))},
        )  # fmt: skip

    @cached_property
    def nodes(self) -> Mapping[str, tuple[Node, ...]]:
        """Map module paths and lines (``"file:line"``) to their nodes; ``""`` is the step."""
        found: dict[str, list[Node]] = {"": [self.profile.root]}
        for node in self.profile.root.walk():
            if node.kind in ("module", "line"):
                found.setdefault(node.name, []).append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def nodes_by_names(self, path: Sequence[str]) -> tuple[Node, ...]:
        """Return the nodes at a path: the first name may be anywhere in the tree; each further name is a child's."""
        found = self.nodes.get(path[0], ()) if path else ()
        for name in path[1:]:
            found = tuple(child for node in found for child in node.children if child.name == name)
        return found

    def children(self, path: Sequence[str]) -> list[dict[str, Any]]:
        """Return the children of the nodes at a path as JSON-ready rows, those that take longest first."""
        found: dict[tuple[str, str], list[Node]] = {}
        for node in self.nodes_by_names(path):
            for child in node.children:
                found.setdefault((child.kind, child.name), []).append(child)
        rows = [
            {
                "kind": kind, "name": name, "path": [*path, name], "wall_s": math.fsum(n.wall_s for n in nodes),
                "held_bytes": sum(n.total_held_bytes for n in nodes), "calls": sum(n.calls for n in nodes),
                "label": self.profile.source,
            }
            for (kind, name), nodes in found.items()
        ]  # fmt: skip
        return sorted(rows, key=lambda row: (-row["wall_s"], -row["held_bytes"]))


def _costliest_kernel(line: Line) -> tuple[str, float] | None:
    """Return the kernel that takes longest in a line, and its time in seconds; ``None`` if no kernel is known."""
    took: dict[str, float] = {}
    for instance in line.instances:
        for node in instance.node.walk():
            if node.kind == "kernel":
                took[node.name] = took.get(node.name, 0.0) + node.device_s
    name = max(took, key=lambda n: took[n], default=None)
    return None if name is None else (name, took[name])


def sum_over_instances(line: Line, what: str) -> dict[str, float]:
    """Sum ``bound_s`` or ``pipe_s`` over all instances of a line."""
    found: dict[str, float] = {}
    for instance in line.instances:
        for name, seconds in getattr(instance.node, what).items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def class_line_ranges(source: str) -> list[tuple[int, int, str]]:
    """Return the first line, last line and name of each class, outer classes first."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [(n.lineno, n.end_lineno or n.lineno, n.name) for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]


def iteration_provider_line(source: str) -> int:
    """Return the line of ``iteration_provider``; 1 for a script."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    return next((n.lineno for n in body if isinstance(n, ast.FunctionDef) and n.name in _STEP), 1)


def _modules_called_by_lines(root: Node) -> dict[tuple[str, int], tuple[PartFigures, ...]]:
    """Return the modules that each line calls, those that take longest first."""
    found: dict[tuple[str, int], dict[str, list[Node]]] = {}
    for node in root.walk():
        if node.kind != "line":
            continue
        for child in node.children:
            if child.kind == "module":
                found.setdefault(_split_file_and_line(node.name), {}).setdefault(child.name, []).append(child)
    return {
        place: tuple(
            sorted(
                (
                    PartFigures(
                        name, math.fsum(n.wall_s for n in nodes), sum(n.total_held_bytes for n in nodes), (name,)
                    )
                    for name, nodes in modules.items()
                ),
                key=lambda part: (-part.wall_s, part.name),
            )
        )
        for place, modules in found.items()
    }


def _split_file_and_line(name: str) -> tuple[str, int]:
    file, _, line = name.rpartition(":")
    return file, int(line)


def _sum_by_class(
    root: Node, classes: Mapping[str, list[tuple[int, int, str]]]
) -> dict[tuple[str, int], PartFigures]:  # fmt: skip
    """Sum the time and memory of each class's instances, by the class's file and line; count nested instances once."""
    owners: dict[tuple[str, int], dict[int, Node]] = {}
    instances: dict[tuple[str, int], dict[str, None]] = {}
    names: dict[tuple[str, int], str] = {}
    for node, owner, module, around in _lines_with_owning_modules(root, classes):
        key = _innermost_class(node.name, classes)
        if key is None:
            continue
        place = key[0]
        names[place] = key[1]
        instances.setdefault(place, {})[module] = None
        if not around[place]:
            owners.setdefault(place, {})[id(owner)] = owner
    return {
        place: PartFigures(
            names[place], math.fsum(n.wall_s for n in nodes.values()),
            sum(n.total_held_bytes for n in nodes.values()), tuple(instances[place]),
        )
        for place, nodes in owners.items()
    }  # fmt: skip


def _innermost_class(
    name: str, classes: Mapping[str, list[tuple[int, int, str]]]
) -> tuple[tuple[str, int], str] | None:
    """Return the innermost class around a line (file and first line, name); ``None`` outside of classes."""
    file, line = _split_file_and_line(name)
    around = [one for one in classes.get(file, ()) if one[0] <= line <= one[1]]
    if not around:
        return None
    first, _, title = max(around)
    return (file, first), title


def _lines_with_owning_modules(
    root: Node, classes: Mapping[str, list[tuple[int, int, str]]]
) -> Iterator[tuple[Node, Node, str, Counter[tuple[str, int]]]]:
    """Yield each line; the module that runs it (or the line); the module's path; and counts of enclosing classes."""
    around: Counter[tuple[str, int]] = Counter()
    todo: list[tuple[Node | None, Node | None, str, tuple[str, int] | None]] = [(root, None, "", None)]
    while todo:
        node, parent, module, place = todo.pop()
        if node is None:
            assert place is not None
            around[place] -= 1
            continue
        if node.kind == "line":
            yield node, parent if parent is not None and parent.kind == "module" else node, module, around
            key = _innermost_class(node.name, classes)
            if key is not None:
                around[key[0]] += 1
                todo.append((None, None, "", key[0]))
        within = node.name if node.kind == "module" else module
        todo += [(child, node, within, None) for child in node.children]
