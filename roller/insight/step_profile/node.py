"""The nodes of a profile's tree: module instances and lines, down to operators, kernels and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

#: Kind of a node. ``"shapes"`` are calls of an operator with inputs of these shapes; ``"tensors"`` are bytes of one
#: kind; ``"overhead"`` is what belongs to no operator.
NodeKind = Literal[
    "step", "line", "module", "operator", "shapes", "kernel", "call", "tensors", "overhead"
]  # fmt: skip


class Seconds(NamedTuple):
    """Time of one phase.

    Parameters
    ----------
    wall_s
        Part of the step's time: each instant belongs to one task, so all nodes of a level sum to the step.
    device_s
        Durations of kernels; on a processor, of operators.
    host_s
        Durations of calls on threads, without waits.
    """

    wall_s: float = 0.0
    device_s: float = 0.0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A module instance, a line, an operator, a kernel or tensors, with all within it.

    Parameters
    ----------
    kind, name
        ``name`` is the path of a module, ``"file:line"``, the name of an operator or kernel, or the kind or name of
        tensors.
    calls
        Operators in it that were called; for a kernel its launches, for tensors their number.
    seconds
        Time by phase. Those of children sum to those of their parent.
    held_bytes
        Bytes requested by kind of storage, at the total's peak. Those of children sum to those of their parent.
    requested_bytes
        Bytes requested in the course of the step, by kind of storage.
    bound_s
        Seconds of kernels by the resource that bounds them, if prices say it.
    pipe_s
        Seconds that the operations take at the peak of their pipe, by pipe.
    registered
        ``"file:line"`` of the lines that register a parameter, outermost first.
    error
        Of a leaf: factors on ``seconds`` that give the ends of its expected or measured interval; ``None`` if unknown.
    lower, upper
        Ends of the interval of ``seconds``, by phase; empty where no leaf of the tree has an error. All leaves are
        assumed to err in the same direction, so the ends of children sum to those of their parent; leaves without an
        error, such as calls on the host, add their time to both ends.
    children
        The one with the most wall time first, then the one with the most bytes.

    Examples
    --------
    >>> leaf = Node("kernel", "gemm", 1, {"forward": Seconds(0.75, 0.5, 0.0)}, bound_s={"compute": 0.5})
    >>> leaf.wall_s, leaf.device_s, leaf.bound
    (0.75, 0.5, 'compute')
    """

    kind: NodeKind
    name: str
    calls: int = 0
    seconds: Mapping[str, Seconds] = field(default_factory=dict)
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    requested_bytes: Mapping[str, int] = field(default_factory=dict)
    bound_s: Mapping[str, float] = field(default_factory=dict)
    pipe_s: Mapping[str, float] = field(default_factory=dict)
    registered: tuple[str, ...] = ()
    children: tuple[Node, ...] = field(default=(), repr=False)
    error: tuple[float, float] | None = None
    lower: Mapping[str, Seconds] = field(default_factory=dict, repr=False)
    upper: Mapping[str, Seconds] = field(default_factory=dict, repr=False)

    def __eq__(self, other: object) -> bool:
        """Return whether two trees are equal, without recursion: they may be deep."""
        if not isinstance(other, Node):
            return NotImplemented
        return all(one._own() == two._own() for one, two in zip(self.walk(), other.walk(), strict=False))

    __hash__ = None  # type: ignore[assignment]

    def _own(self) -> tuple[object, ...]:
        """Return all but the children, of which only the number: that of each tells a preorder from all others."""
        return (
            self.kind, self.name, self.calls, self.seconds, self.held_bytes, self.requested_bytes, self.bound_s,
            self.pipe_s, self.registered, self.error, len(self.children),
        )  # fmt: skip

    @property
    def wall_s(self) -> float:
        """Part of the step's time."""
        return math.fsum(part.wall_s for part in self.seconds.values())

    @property
    def device_s(self) -> float:
        """Durations of kernels."""
        return math.fsum(part.device_s for part in self.seconds.values())

    @property
    def host_s(self) -> float:
        """Durations of calls on threads."""
        return math.fsum(part.host_s for part in self.seconds.values())

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Interval of ``wall_s``; ``None`` where it is not known."""
        return self._interval("wall_s")

    @property
    def device_interval_s(self) -> tuple[float, float] | None:
        """Interval of ``device_s``; ``None`` where it is not known."""
        return self._interval("device_s")

    def _interval(self, name: str) -> tuple[float, float] | None:
        if not self.lower:
            return None
        lower, upper = (math.fsum(getattr(p, name) for p in end.values()) for end in (self.lower, self.upper))
        return lower, upper

    @property
    def total_held_bytes(self) -> int:
        """Bytes at the total's peak."""
        return sum(self.held_bytes.values())

    @property
    def bound(self) -> str:
        """The resource that bounds most of the time of kernels; ``""`` where it is unknown."""
        return max(self.bound_s, key=lambda r: self.bound_s[r], default="")

    @property
    def share_of_peak(self) -> tuple[str, float] | None:
        """The pipe with the most work, and the share of its peak that the kernels reach; ``None`` if it is unknown."""
        pipe = max(self.pipe_s, key=lambda p: self.pipe_s[p], default=None)
        return None if pipe is None or not self.device_s else (pipe, self.pipe_s[pipe] / self.device_s)

    def walk(self) -> Iterator[Node]:
        """Yield the node, and all nodes within it."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(reversed(node.children))


def sum_phases(parts: Iterable[Mapping[str, Seconds]]) -> dict[str, Seconds]:
    """Return the sum of times by phase, rounded once."""
    found: dict[str, list[Seconds]] = {}
    for part in parts:
        for phase, seconds in part.items():
            found.setdefault(phase, []).append(seconds)
    return {phase: Seconds(*map(math.fsum, zip(*own, strict=True))) for phase, own in found.items()}


def with_intervals(root: Node) -> Node:
    """Return the tree with the interval of every node, computed from the errors of the leaves."""
    order = list(root.walk())
    if all(node.error is None for node in order):
        return root
    built: dict[int, Node] = {}
    for node in reversed(order):  # children before their parents, without recursion
        children = tuple(built.pop(id(child)) for child in node.children)
        if children:
            lower, upper = (sum_phases(getattr(child, end) for child in children) for end in ("lower", "upper"))
        else:
            lower, upper = (_scaled(node.seconds, 1.0 if node.error is None else node.error[end]) for end in (0, 1))
        built[id(node)] = replace(node, children=children, lower=lower, upper=upper)
    return built[id(root)]


def _scaled(seconds: Mapping[str, Seconds], factor: float) -> dict[str, Seconds]:
    """Return times multiplied by a factor, except those of the host, whose error is unknown."""
    return {p: Seconds(factor * part.wall_s, factor * part.device_s, part.host_s) for p, part in seconds.items()}
