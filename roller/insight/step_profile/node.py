"""Nodes of a profile's tree: modules and lines down to operators, kernels and tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

#: Kind of a node: ``"shapes"`` groups the calls of an operator by input shapes, ``"tensors"`` stands for the bytes of
#: one kind, and ``"overhead"`` stands for time and memory outside operators.
NodeKind = Literal[
    "step", "line", "module", "operator", "shapes", "kernel", "call", "tensors", "overhead"
]  # fmt: skip


class Seconds(NamedTuple):
    """Time of one phase.

    Parameters
    ----------
    wall_s
        Share of the step's wall time, in seconds. Each instant belongs to one task, so the times of the nodes at one
        level add up to the step's time.
    device_s
        Total duration of kernels or, on a CPU, of operators.
    host_s
        Total duration of calls on threads, without waits.
    """

    wall_s: float = 0.0
    device_s: float = 0.0
    host_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A module instance, line, operator, kernel or group of tensors, with its children.

    Parameters
    ----------
    kind, name
        ``name`` is a module path, ``"file:line"``, the name of an operator or kernel, or the kind or name of tensors.
    calls
        Number of operator calls in the node; for a kernel, number of launches; for tensors, number of tensors.
    seconds
        Time by phase; the times of children add up to the parent's time.
    held_bytes
        Bytes by kind of storage at the peak of total memory; the bytes of children add up to the parent's bytes.
    requested_bytes
        Bytes requested during the step, by kind of storage.
    bound_s
        Seconds that kernels take, by limiting resource, if the prices contain it.
    pipe_s
        Seconds that the operations would take at the peak rates of their pipes, by pipe.
    registered
        ``"file:line"`` for each line that registers a parameter, outermost first.
    error
        For a leaf, the interval of ``seconds`` as two factors; ``None`` if unknown.
    lower, upper
        Ends of the interval of ``seconds`` by phase; empty if no leaf has an error. Leaves are assumed to err in the
        same direction, so the ends of children add up to the ends of the parent. Leaves without an error, such as host
        calls, add their time to both ends.
    children
        Child nodes by descending wall time, then by descending bytes.

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
        if not isinstance(other, Node):
            return NotImplemented
        # iterative, since trees may be deep; each node's number of children makes its preorder unique
        return all(one._own() == two._own() for one, two in zip(self.walk(), other.walk(), strict=False))

    __hash__ = None  # type: ignore[assignment]

    def _own(self) -> tuple[object, ...]:
        """Return all fields except the children, and the number of children."""
        return (
            self.kind, self.name, self.calls, self.seconds, self.held_bytes, self.requested_bytes, self.bound_s,
            self.pipe_s, self.registered, self.error, len(self.children),
        )  # fmt: skip

    @property
    def wall_s(self) -> float:
        """Share of the step's wall time, in seconds."""
        return math.fsum(part.wall_s for part in self.seconds.values())

    @property
    def device_s(self) -> float:
        """Total duration of kernels."""
        return math.fsum(part.device_s for part in self.seconds.values())

    @property
    def host_s(self) -> float:
        """Total duration of calls on threads."""
        return math.fsum(part.host_s for part in self.seconds.values())

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Interval of ``wall_s``; ``None`` if unknown."""
        return self._sum_interval("wall_s")

    @property
    def device_interval_s(self) -> tuple[float, float] | None:
        """Interval of ``device_s``; ``None`` if unknown."""
        return self._sum_interval("device_s")

    def _sum_interval(self, name: str) -> tuple[float, float] | None:
        if not self.lower:
            return None
        lower, upper = (math.fsum(getattr(p, name) for p in end.values()) for end in (self.lower, self.upper))
        return lower, upper

    @property
    def total_held_bytes(self) -> int:
        """Bytes at the peak of total memory."""
        return sum(self.held_bytes.values())

    @property
    def bound(self) -> str:
        """The resource that limits the kernels for most of their time; ``""`` if unknown."""
        return max(self.bound_s, key=lambda r: self.bound_s[r], default="")

    @property
    def share_of_peak(self) -> tuple[str, float] | None:
        """The pipe with the most work, and the share of its peak that the kernels reach; ``None`` if unknown."""
        pipe = max(self.pipe_s, key=lambda p: self.pipe_s[p], default=None)
        return None if pipe is None or not self.device_s else (pipe, self.pipe_s[pipe] / self.device_s)

    def walk(self) -> Iterator[Node]:
        """Yield the node and all its descendants in preorder."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(reversed(node.children))


def sum_seconds_by_phase(parts: Iterable[Mapping[str, Seconds]]) -> dict[str, Seconds]:
    """Sum times by phase, rounding only once."""
    found: dict[str, list[Seconds]] = {}
    for part in parts:
        for phase, seconds in part.items():
            found.setdefault(phase, []).append(seconds)
    return {phase: Seconds(*map(math.fsum, zip(*own, strict=True))) for phase, own in found.items()}


def tree_with_node_intervals(root: Node) -> Node:
    """Return the tree with the interval of each node, computed from the errors of its leaves."""
    order = list(root.walk())
    if all(node.error is None for node in order):
        return root
    built: dict[int, Node] = {}
    for node in reversed(order):  # children before their parents, without recursion
        children = tuple(built.pop(id(child)) for child in node.children)
        if children:
            lower, upper = (
                sum_seconds_by_phase(getattr(child, end) for child in children) for end in ("lower", "upper")
            )
        else:
            lower, upper = (
                _scale_device_times(node.seconds, 1.0 if node.error is None else node.error[end]) for end in (0, 1)
            )
        built[id(node)] = replace(node, children=children, lower=lower, upper=upper)
    return built[id(root)]


def _scale_device_times(seconds: Mapping[str, Seconds], factor: float) -> dict[str, Seconds]:
    """Scale times by a factor, except host times, whose error is unknown."""
    return {p: Seconds(factor * part.wall_s, factor * part.device_s, part.host_s) for p, part in seconds.items()}
