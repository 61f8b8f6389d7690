"""Differences between two profiles, for each tree node and line. Deltas are the value after minus the value before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from roller.insight.step_profile.node import Node, NodeKind
from roller.insight.step_profile.step_profile import StepProfile
from roller.insight.whatif.predict import HARDLY
from roller_runtime.core.display import bytes_text, html_table, seconds_text

#: Largest change of a line's time, relative to the step's, that counts as rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """A node in one or both trees.

    Parameters
    ----------
    kind, name
        See :class:`~roller.insight.step_profile.node.Node`.
    before_s, after_s
        Wall time; 0 if the tree does not have the node.
    before_bytes, after_bytes
        Bytes when total memory is at its peak.
    children
        Children in either tree, the largest change in time first.
    """

    kind: NodeKind
    name: str
    before_s: float
    after_s: float
    before_bytes: int
    after_bytes: int
    children: tuple[NodeDifference, ...] = field(default=(), repr=False)

    @property
    def delta_s(self) -> float:
        """Change in wall time."""
        return self.after_s - self.before_s

    @property
    def delta_bytes(self) -> int:
        """Change in bytes at the peak of total memory."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class LineDifference:
    """A line in one or both profiles, excluding the lines that it calls.

    Parameters
    ----------
    name
        ``"file:line"`` after the change; ``""`` for the rest of the step.
    before_s, after_s, before_bytes, after_bytes
        Cost of the line alone; the costs of all lines add up to the step.
    made_delta_s, made_delta_bytes
        Change in the time of the modules whose parameters the line registers, and in the bytes of those parameters.
        Both changes also count in the lines that call the modules.
    """

    name: str
    before_s: float
    after_s: float
    before_bytes: int
    after_bytes: int
    made_delta_s: float = 0.0
    made_delta_bytes: int = 0

    @property
    def delta_s(self) -> float:
        """Change in the wall time of the line alone."""
        return self.after_s - self.before_s

    @property
    def delta_bytes(self) -> int:
        """Change in the bytes of the line alone."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True)
class ProfileDifference:
    """The difference between two profiles.

    Parameters
    ----------
    root
        Both trees, merged.
    lines
        All lines in either profile: first those that register different weights, then the others, each group sorted by
        the size of the change. The changes of all lines add up to the step's change.
    """

    before: StepProfile = field(repr=False)
    after: StepProfile = field(repr=False)
    root: NodeDifference = field(repr=False)
    lines: tuple[LineDifference, ...] = field(repr=False)

    @property
    def delta_s(self) -> float:
        """Change in the step's time."""
        return self.root.delta_s

    @property
    def fits(self) -> bool:
        """Whether both steps fit; otherwise, bytes are counted only up to the failure and cannot be compared."""
        return self.before.fits and self.after.fits

    @property
    def delta_bytes(self) -> int | None:
        """Change in total memory; ``None`` if either step does not fit."""
        return self.root.delta_bytes if self.fits else None

    @property
    def misfits(self) -> tuple[str, ...]:
        """A sentence for each step that does not fit, with the line that fails."""
        sides = (("Before", self.before), ("After", self.after))
        return tuple(f"{side} does not fit: {one.out_of_memory}" for side, one in sides if not one.fits)

    @property
    def is_hardly_anything(self) -> bool:
        """Whether the change in time is below the threshold at which hints call a gain negligible."""
        return abs(self.delta_s) < HARDLY * self.before.iteration_s or not self.delta_s

    @property
    def differing(self) -> tuple[LineDifference, ...]:
        """Lines whose time, memory or registered parameters differ by more than rounding."""
        least_s = _ROUNDING * max(self.before.iteration_s, self.after.iteration_s)
        fits = self.fits  # if not, bytes are those before a failure
        return tuple(
            x for x in self.lines
            if max(abs(x.delta_s), abs(x.made_delta_s)) > least_s or (fits and (x.delta_bytes or x.made_delta_bytes))
        )  # fmt: skip

    def _repr_html_(self) -> str:
        rows = (
            (x.name or "no line", seconds_text(x.before_s), seconds_text(x.after_s), seconds_text(x.delta_s),
             "-" * (x.delta_bytes < 0) + bytes_text(abs(x.delta_bytes)) if self.fits else "")
            for x in self.differing
        )  # fmt: skip
        labels = " and ".join(dict.fromkeys((self.before.label, self.after.label)))
        title = f"{seconds_text(self.before.iteration_s)} to {seconds_text(self.after.iteration_s)} a step, {labels}"
        title = ". ".join((title, *self.misfits))
        return html_table(title, ("line", "before", "after", "change", "change of memory"), rows)


def difference(
    before: StepProfile, after: StepProfile, renamed_lines: Mapping[str, str] | None = None
) -> ProfileDifference:
    """Compare two profiles.

    Parameters
    ----------
    before, after
        Profiles from any source and for any device.
    renamed_lines
        Maps ``"file:line"`` before an edit to that after it, for lines that the edit moved; other lines keep their
        names.
    """
    names = renamed_lines or {}
    root = _merge_trees(([before.root], [after.root]), names)
    return ProfileDifference(before, after, root, _line_differences(before, after, names))


#: Nodes with the same key, before and after.
_Sides = tuple[Sequence[Node], Sequence[Node]]


def _merge_trees(root: _Sides, names: Mapping[str, str]) -> NodeDifference:
    order, places = [root], list[range]()  # without recursion: trees may be deep
    for sides in order:
        order += _group_children_by_key(sides, names)
        places.append(range(places[-1].stop if places else 1, len(order)))
    built: dict[int, NodeDifference] = {}
    for at in reversed(range(len(order))):
        built[at] = _make_node_difference(order[at], [built.pop(n) for n in places[at]], names)
    return built[0]


def _group_children_by_key(sides: _Sides, names: Mapping[str, str]) -> list[_Sides]:
    """Group the children of nodes by kind and name; an edit may map several old lines to one."""
    found: dict[tuple[NodeKind, str], tuple[list[Node], list[Node]]] = {}
    for side, nodes in enumerate(sides):
        for node in nodes:
            for child in node.children:
                name = names.get(child.name, child.name) if side == 0 and child.kind == "line" else child.name
                found.setdefault((child.kind, name), ([], []))[side].append(child)
    return list(found.values())


def _make_node_difference(sides: _Sides, children: list[NodeDifference], names: Mapping[str, str]) -> NodeDifference:
    before, after = sides
    first = after[0] if after else before[0]
    name = first.name if after or first.kind != "line" else names.get(first.name, first.name)
    return NodeDifference(
        first.kind, name, math.fsum(n.wall_s for n in before), math.fsum(n.wall_s for n in after),
        sum(n.total_held_bytes for n in before), sum(n.total_held_bytes for n in after),
        tuple(sorted(children, key=lambda x: (-abs(x.delta_s), -abs(x.delta_bytes), x.kind, x.name))),
    )  # fmt: skip


@dataclass
class _LineSums:
    own_s: list[float] = field(default_factory=list)
    own_bytes: int = 0
    made_s: list[float] = field(default_factory=list)
    made_bytes: int = 0


def _line_differences(before: StepProfile, after: StepProfile, names: Mapping[str, str]) -> tuple[LineDifference, ...]:
    old, new = _sums_by_line(before.root, names), _sums_by_line(after.root, {})
    rows = []
    for name in {**old, **new}:
        a, b = old.get(name, _LineSums()), new.get(name, _LineSums())
        rows.append(
            LineDifference(
                name, math.fsum(a.own_s), math.fsum(b.own_s), a.own_bytes, b.own_bytes,
                math.fsum(b.made_s) - math.fsum(a.made_s), b.made_bytes - a.made_bytes,
            )
        )  # fmt: skip
    whole_s = max(before.iteration_s, after.iteration_s) or 1.0
    whole_bytes = max(before.total_bytes, after.total_bytes) or 1

    def sort_key(row: LineDifference) -> tuple[bool, float, str]:  # changed weights first: they are causes
        seconds, size = (
            max(abs(row.delta_s), abs(row.made_delta_s)),
            max(abs(row.delta_bytes), abs(row.made_delta_bytes)),
        )
        return not row.made_delta_bytes, -max(seconds / whole_s, size / whole_bytes), row.name

    return tuple(sorted(rows, key=sort_key))


def _sums_by_line(root: Node, names: Mapping[str, str]) -> dict[str, _LineSums]:
    """Return the cost of each line without the lines that it calls, and the cost of the modules that it makes."""
    found: dict[str, _LineSums] = {}
    for line, node in _leaves_with_lines(root):
        sums = found.setdefault(names.get(line, line), _LineSums())
        sums.own_s.append(node.wall_s)
        sums.own_bytes += node.total_held_bytes
    for module in root.walk():
        makers = {child.registered[-1] for child in module.children if child.registered}
        for child in module.children:
            if child.registered:
                maker = found.setdefault(names.get(child.registered[-1], child.registered[-1]), _LineSums())
                maker.made_bytes += child.total_held_bytes
        for line in makers:
            found[names.get(line, line)].made_s.append(module.wall_s)
    return found


def _leaves_with_lines(root: Node) -> Iterator[tuple[str, Node]]:
    todo: list[tuple[str, Node]] = [("", root)]
    while todo:
        line, node = todo.pop()
        within = node.name if node.kind == "line" else line
        if node.children:
            todo += [(within, child) for child in node.children]
        else:
            yield within, node
