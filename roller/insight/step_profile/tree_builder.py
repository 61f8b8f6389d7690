"""Builds a profile's tree from its leaves, so that the figures of children add up to those of their parents."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from roller.insight.step_profile.node import Node, NodeKind, Seconds, tree_with_node_intervals
from roller.insight.trace.trace import Stack


class NodeKey(NamedTuple):
    """Kind and name of a node, unique among its siblings."""

    kind: NodeKind
    name: str


#: Pattern of a module instance's path, as ``named_modules`` gives it.
_MODULE_PATH = re.compile(r"[\w-]+(\.[\w-]+)*")
#: Keys of the nodes on the way from the root to a node, without the root's key.
Path = tuple[NodeKey, ...]


def tree_path_of_call(stack: Stack, module: str, operator: str = "") -> Path:
    """Return the tree path of an operator: the lines in its stack, and the modules between them.

    Examples
    --------
    >>> from roller.insight.trace.trace import Frame
    >>> path = tree_path_of_call((Frame("a.py", 9), Frame("a.py", 4, "Block.forward", "body.0")), "body.0.fc",
    ...     "aten.mm")
    >>> [key.name for key in path]
    ['a.py:9', 'body', 'body.0', 'a.py:4', 'body.0.fc', 'aten.mm']
    """
    found: list[NodeKey] = []
    within = ""
    for frame in stack:
        found += _modules_between(within, frame.module)
        found.append(NodeKey("line", f"{frame.file}:{frame.line}"))
        within = frame.module
    found += _modules_between(within, module)
    if operator:
        found.append(NodeKey("operator", operator))
    return tuple(found)


def _modules_between(outer: str, inner: str) -> Iterator[NodeKey]:
    """Yield the modules below ``outer`` down to ``inner``; yield only ``inner`` if it is outside ``outer``."""
    if inner == outer or not inner:
        return
    is_path = _MODULE_PATH.fullmatch(inner) is not None  # regions of a recording can have any name
    if not is_path or (outer and not inner.startswith(outer + ".")):
        yield NodeKey("module", inner)
        return
    names = inner.split(".")
    for count in range(1 + (outer.count(".") + 1 if outer else 0), len(names) + 1):
        yield NodeKey("module", ".".join(names[:count]))


@dataclass
class _NodeDraft:
    """A node under construction; only leaves have figures of their own."""

    key: NodeKey
    children: dict[NodeKey, _NodeDraft] = field(default_factory=dict)
    calls: int = 0
    seconds: dict[str, list[Seconds]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    requested: dict[str, int] = field(default_factory=dict)
    bound: dict[str, list[float]] = field(default_factory=dict)
    pipes: dict[str, list[float]] = field(default_factory=dict)
    registered: tuple[str, ...] = ()
    errors: list[tuple[float, tuple[float, float]]] = field(default_factory=list)


class TreeBuilder:
    """Builds a tree from leaves that are added one by one.

    Examples
    --------
    >>> tree = TreeBuilder()
    >>> for phase in ("forward", "backward"):
    ...     tree.add_time((NodeKey("line", "a.py:3"), NodeKey("operator", "mm")), phase, Seconds(0.1, 0.1, 0.0))
    >>> tree.add_bytes((NodeKey("line", "a.py:3"),), "activation", held=12)
    >>> root = tree.build()
    >>> root.wall_s, root.held_bytes, [child.name for child in root.children[0].children]
    (0.2, {'activation': 12}, ['mm', 'activation'])
    """

    def __init__(self) -> None:
        self._root = _NodeDraft(NodeKey("step", "step"))
        self._module_paths: dict[str, Path] = {"": ()}

    def add_time(
        self, path: Path, phase: str, seconds: Seconds, *, calls: int = 1, bound: str = "",
        pipes: Iterable[tuple[str, float]] = (), error: tuple[float, float] | None = None,
    ) -> None:  # fmt: skip
        """Add time to a leaf; ``error`` is the interval of the time as two factors."""
        leaf = self._find_or_add_leaf(path)
        leaf.calls += calls
        leaf.seconds.setdefault(phase, []).append(seconds)
        if bound:
            leaf.bound.setdefault(bound, []).append(seconds.device_s)
        if error is not None:
            leaf.errors.append((seconds.wall_s + seconds.device_s, error))
        for pipe, took_s in pipes:
            leaf.pipes.setdefault(pipe, []).append(took_s)

    def count_call(self, path: Path) -> None:
        """Count one call of an operator whose kernels are separate leaves."""
        self._find_or_add_leaf(path).calls += 1

    def add_bytes(
        self, path: Path, kind: str, *, name: str = "", held: int = 0, requested: int = 0,
        registered: tuple[str, ...] = (), tensors: int = 1,
    ) -> None:  # fmt: skip
        """Add the bytes of tensors of one kind below a path."""
        leaf = self._find_or_add_leaf((*path, NodeKey("tensors", name or kind)))
        leaf.calls += tensors
        leaf.registered = leaf.registered or registered
        if held:
            leaf.held[kind] = leaf.held.get(kind, 0) + held
        if requested:
            leaf.requested[kind] = leaf.requested.get(kind, 0) + requested

    def tree_path_of_module(self, module: str) -> Path:
        """Return the path of a module's first call; if there is none, a path below the nearest module with a call."""
        known = module
        while known not in self._module_paths:
            known = known.rpartition(".")[0]
        return (*self._module_paths[known], *_modules_between(known, module))

    def build(self) -> Node:
        """Return the tree without modules whose only child is another module."""
        return tree_with_node_intervals(_build_tree(self._root))

    def _find_or_add_leaf(self, path: Path) -> _NodeDraft:
        at = self._root
        for depth, key in enumerate(path, 1):
            following = at.children.get(key)
            if following is None:
                following = at.children[key] = _NodeDraft(key)
                if key.kind == "module":
                    self._module_paths.setdefault(key.name, path[:depth])
            at = following
        return at


#: Kinds of nodes whose ``calls`` counts calls of operators.
_CALLED = ("line", "module", "operator")


def _build_tree(root: _NodeDraft) -> Node:
    order = [root]
    for draft in order:
        order.extend(draft.children.values())
    built: dict[int, Node] = {}
    for draft in reversed(order):  # children before their parents, without recursion: stacks may be deep
        built[id(draft)] = _build_node(draft, [built.pop(id(child)) for child in draft.children.values()])
    return built[id(root)]


def _build_node(draft: _NodeDraft, children: list[Node]) -> Node:
    if draft.key.kind == "module" and len(children) == 1 and children[0].kind == "module":
        return children[0]
    calls = draft.calls
    if draft.key.kind in ("step", "line", "module"):
        calls = sum(child.calls for child in children if child.kind in _CALLED)
    seconds = {phase: list(own) for phase, own in draft.seconds.items()}
    for child in children:
        for phase, own in child.seconds.items():
            seconds.setdefault(phase, []).append(own)
    children.sort(key=lambda child: (-child.wall_s, -child.total_held_bytes, child.kind, child.name))
    return Node(
        draft.key.kind, draft.key.name, calls, {phase: _sum_seconds(own) for phase, own in seconds.items()},
        _sum_bytes(draft.held, *(child.held_bytes for child in children)),
        _sum_bytes(draft.requested, *(child.requested_bytes for child in children)),
        _sum_values_by_name(draft.bound, [child.bound_s for child in children]),
        _sum_values_by_name(draft.pipes, [child.pipe_s for child in children]), draft.registered, tuple(children),
        None if children else _weighted_mean_interval(draft.errors),
    )  # fmt: skip


def _weighted_mean_interval(errors: list[tuple[float, tuple[float, float]]]) -> tuple[float, float] | None:
    if len({error for _, error in errors}) < 2:
        return errors[0][1] if errors else None
    whole = math.fsum(weight for weight, _ in errors)
    weights = [weight / whole if whole else 1.0 / len(errors) for weight, _ in errors]
    lower, upper = (math.fsum(w * error[end] for w, (_, error) in zip(weights, errors, strict=True)) for end in (0, 1))
    return lower, upper


def _sum_seconds(parts: list[Seconds]) -> Seconds:
    return Seconds(*map(math.fsum, zip(*parts, strict=True)))


def _sum_bytes(*parts: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for kind, size in part.items():
            found[kind] = found.get(kind, 0) + size
    return found


def _sum_values_by_name(own: Mapping[str, list[float]], parts: list[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys((*own, *(name for part in parts for name in part)))
    return {n: math.fsum([*own.get(n, ()), *(part[n] for part in parts if n in part)]) for n in names}
