"""The lines of a profile: what each costs, for every module instance that runs it, and in sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from roller.insight.step_profile.node import Node, Seconds, sum_phases


class LineInstance(NamedTuple):
    """A line that one module instance runs; ``module`` is ``""`` for the root module and outside of all."""

    module: str
    node: Node


@dataclass(frozen=True)
class Line:
    """A line of the project that runs operators, calls a line that does, or registers parameters.

    Parameters
    ----------
    file, line
        Relative to the project, and from 1.
    seconds
        Time by phase, of all instances. A line that calls itself counts once.
    held_bytes, requested_bytes
        Bytes by kind of storage, of all instances: at the total's peak, and in the course of the step.
    registered_bytes
        Bytes of parameters that the line registers.
    instances
        The line in each module instance that runs it, the one with the most time first.
    lower, upper
        Ends of the interval of ``seconds``, as those of a :class:`~roller.insight.step_profile.node.Node`.
    """

    file: str
    line: int
    seconds: Mapping[str, Seconds] = field(default_factory=dict)
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    requested_bytes: Mapping[str, int] = field(default_factory=dict)
    registered_bytes: int = 0
    instances: tuple[LineInstance, ...] = field(default=(), repr=False)
    lower: Mapping[str, Seconds] = field(default_factory=dict, repr=False)
    upper: Mapping[str, Seconds] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """``"file:line"``."""
        return f"{self.file}:{self.line}"

    @property
    def wall_s(self) -> float:
        """Part of the step's time."""
        return math.fsum(part.wall_s for part in self.seconds.values())

    @property
    def total_held_bytes(self) -> int:
        """Bytes at the total's peak."""
        return sum(self.held_bytes.values())


def lines_of_tree(root: Node) -> tuple[Line, ...]:
    """Return every line of a tree, by file and line."""
    instances: dict[str, list[tuple[LineInstance, bool]]] = {}
    registered: dict[str, int] = {}
    for node, module, is_outer in _walk(root):
        if node.kind == "line":
            instances.setdefault(node.name, []).append((LineInstance(module, node), is_outer))
        for name in node.registered:
            registered[name] = registered.get(name, 0) + node.held_bytes.get("parameter", 0)
    return tuple(
        sorted(
            (_line(name, instances.get(name, []), registered.get(name, 0)) for name in {**instances, **registered}),
            key=lambda line: (line.file, line.line),
        )
    )


def _walk(root: Node) -> Iterator[tuple[Node, str, bool]]:
    """Yield every node with the module instance around it, and whether no line of its name is around it."""
    todo: list[tuple[Node | None, str]] = [(root, "")]  # no node: a line of this name ends
    around: Counter[str] = Counter()
    while todo:
        node, module = todo.pop()
        if node is None:
            around[module] -= 1
            continue
        yield node, module, not around[node.name]
        if node.kind == "line":
            around[node.name] += 1
            todo.append((None, node.name))
        within = node.name if node.kind == "module" else module
        todo += [(child, within) for child in node.children]


def _line(name: str, found: list[tuple[LineInstance, bool]], registered_bytes: int) -> Line:
    outer = [instance.node for instance, is_outer in found if is_outer]
    seconds, lower, upper = (sum_phases(getattr(n, name) for n in outer) for name in ("seconds", "lower", "upper"))
    file, _, number = name.rpartition(":")
    instances = sorted((instance for instance, _ in found), key=lambda x: (-x.node.wall_s, x.module))
    return Line(
        file, int(number), seconds, _sum([n.held_bytes for n in outer]), _sum([n.requested_bytes for n in outer]),
        registered_bytes, tuple(instances), lower, upper,
    )  # fmt: skip


def _sum(parts: list[Mapping[str, int]]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for part in parts for kind in part)
    return {kind: sum(part.get(kind, 0) for part in parts) for kind in kinds}
