"""The lines of a profile: the cost of each line in total and for each module instance that runs it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from roller.insight.step_profile.node import Node, Seconds, sum_seconds_by_phase


class LineInstance(NamedTuple):
    """A line run by one module instance; ``module`` is ``""`` in the root module and outside modules."""

    module: str
    node: Node


@dataclass(frozen=True)
class Line:
    """A line in the project that runs operators, calls a line that does, or registers parameters.

    Parameters
    ----------
    file, line
        Path relative to the project, and line number from 1.
    seconds
        Time by phase over all instances; a recursive line is counted once.
    held_bytes, requested_bytes
        Bytes by kind of storage over all instances: those held at the peak of total memory, and those requested during
        the step.
    registered_bytes
        Bytes of parameters that the line registers.
    instances
        The line in each module instance that runs it, slowest first.
    lower, upper
        Ends of the interval of ``seconds``; see :class:`~roller.insight.step_profile.node.Node`.
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
        """The line's share of the step's wall time, in seconds."""
        return math.fsum(part.wall_s for part in self.seconds.values())

    @property
    def total_held_bytes(self) -> int:
        """Bytes at the peak of total memory."""
        return sum(self.held_bytes.values())


def lines_of_tree(root: Node) -> tuple[Line, ...]:
    """Return every line of a tree, sorted by file and line number."""
    instances: dict[str, list[tuple[LineInstance, bool]]] = {}
    registered: dict[str, int] = {}
    for node, module, is_outer in _walk_with_modules(root):
        if node.kind == "line":
            instances.setdefault(node.name, []).append((LineInstance(module, node), is_outer))
        for name in node.registered:
            registered[name] = registered.get(name, 0) + node.held_bytes.get("parameter", 0)
    return tuple(
        sorted(
            (
                _make_line(name, instances.get(name, []), registered.get(name, 0))
                for name in {**instances, **registered}
            ),
            key=lambda line: (line.file, line.line),
        )
    )


def _walk_with_modules(root: Node) -> Iterator[tuple[Node, str, bool]]:
    """Yield each node with its module instance, and whether the node is outside other nodes with the same name."""
    todo: list[tuple[Node | None, str]] = [(root, "")]  # None marks the end of the line with this name
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


def _make_line(name: str, found: list[tuple[LineInstance, bool]], registered_bytes: int) -> Line:
    outer = [instance.node for instance, is_outer in found if is_outer]
    seconds, lower, upper = (
        sum_seconds_by_phase(getattr(n, name) for n in outer) for name in ("seconds", "lower", "upper")
    )
    file, _, number = name.rpartition(":")
    instances = sorted((instance for instance, _ in found), key=lambda x: (-x.node.wall_s, x.module))
    return Line(
        file, int(number), seconds, _sum_bytes_by_kind([n.held_bytes for n in outer]),
        _sum_bytes_by_kind([n.requested_bytes for n in outer]),
        registered_bytes, tuple(instances), lower, upper,
    )  # fmt: skip


def _sum_bytes_by_kind(parts: list[Mapping[str, int]]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for part in parts for kind in part)
    return {kind: sum(part.get(kind, 0) for part in parts) for kind in kinds}
