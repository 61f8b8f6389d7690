"""The HTML report of a profile: its tree and tables as columns for ``roller.page.html_page``."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from roller.errors import ArtifactError
from roller.insight.step_profile.batch_curve import BatchCurve
from roller.insight.step_profile.html_interval_columns import (
    StepTimes,
    interval_columns,
    phase_interval_ends,
    throughput_interval,
)
from roller.insight.step_profile.html_memory_columns import memory_columns
from roller.insight.step_profile.lines import Line
from roller.insight.step_profile.node import Node, sum_seconds_by_phase
from roller.page.anonymize_report_paths import without_paths
from roller.page.html_page import html_page
from roller_runtime.core.display import bytes_text, html_table

#: Initial limit on nodes and table rows, halved until the page is small enough, and the smallest limit.
_MOST_NODES, _LEAST_NODES = 200_000, 64
#: Maps the heading of each table to the kind of its nodes. Lines have a table of their own.
_TABLES = {"operators": "operator", "kernels": "kernel", "modules": "module", "shapes": "shapes"}
#: Returns the source text of ``"file:line"``; ``""`` if it is unknown.
TextOf = Callable[[str], str]
_Row = TypeVar("_Row", Node, Line)


class _PageProfile(StepTimes, Protocol):
    """Protocol for the profile that the page shows."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> Literal["predicted", "measured", "recorded"]: ...
    @property
    def label(self) -> str: ...
    @property
    def root(self) -> Node: ...
    @property
    def lines(self) -> tuple[Line, ...]: ...
    @property
    def checkpoint(self) -> tuple[str, ...]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def memory_parts(self) -> Mapping[str, int]: ...
    @property
    def categories(self) -> Mapping[str, float]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def memory_curve(self) -> Sequence[Any]: ...
    @property
    def curve(self) -> BatchCurve | None: ...


def profile_html(
    profile: _PageProfile,
    *,
    anonymous: bool = False,
    text_of: TextOf | None = None,
    parts: Mapping[str, Any] | None = None,
) -> str:
    """Return a profile as one HTML file of at most 1.5 MB without external resources."""
    most, count = _MOST_NODES, 0
    while True:  # a page that is too large merges its smallest parts, and a note says so
        data = {**profile_page_data(profile, None if anonymous else text_of, most), **(parts or {})}
        if anonymous:
            data = _anonymise_page_data(data, _files_of_lines(profile.root))
        try:
            return html_page(f"{data['name']}, {profile.label}: profile of a training step", data)
        except ArtifactError:
            count = count or sum(1 for _ in profile.root.walk())
            most = min(most, count) // 2
            if most < _LEAST_NODES:
                raise


def _anonymise_page_data(data: dict[str, Any], files: set[str]) -> dict[str, Any]:
    """Return a page's data without the names of steps and files, including those in the compared profile."""
    found = data.get("difference")
    named: dict[str, Any] = {"name": _anonymous_name(data)}
    if found is not None:
        sides = {side: {**found[side], "name": _anonymous_name(found[side])} for side in ("before", "after")}
        named["difference"] = {**found, **sides}
        lines = [*(row["name"] for row in found["lines"]), *(found[side]["out_of_memory_at"] for side in sides)]
        files = files | {line.rpartition(":")[0] for line in lines}
    return dict(without_paths({**data, **named}, files))


def _anonymous_name(data: Mapping[str, Any]) -> str:
    return "recording" if data["source"] == "recorded" else "step"


def _files_of_lines(root: Node) -> set[str]:
    """Return the files of a tree's lines, whose names :func:`without_paths` may not recognize."""
    lines = (line for n in root.walk() for line in ((n.name, *n.registered) if n.kind == "line" else n.registered))
    return {line.rpartition(":")[0] for line in lines}


def profile_page_data(profile: _PageProfile, text_of: TextOf | None = None, most: int = _MOST_NODES) -> dict[str, Any]:
    """Return a profile as JSON-ready values, with NumPy arrays as columns."""
    names = _TextIndex()
    plain = (
        "name", "source", "label", "device", "iteration_s", "lower_s", "upper_s", "batch", "samples", "devices", "amp",
        "policy", "bound", "capacity_bytes", "total_error_bytes", "out_of_memory", "total_bytes", "throughput",
        "is_stable",
    )  # fmt: skip
    root, notes = merge_small_nodes(profile.root, most), list(profile.notes)
    if root is not profile.root:
        count = sum(1 for _ in profile.root.walk())
        notes.append(
            f"The page shows the {most} largest parts of {count}; smaller ones are joined, or left out of tables."
        )
    return {
        "view": "profile",
        **{name: getattr(profile, name) for name in plain},
        "checkpoint": list(profile.checkpoint),
        "versions": dict(profile.versions),
        "throughput_interval": throughput_interval(profile),
        "steps": _recorded_step_count(profile),
        "trains": profile.source == "recorded" or bool({"backward", "optimizer"} & set(profile.root.seconds)),
        "memory_parts": dict(profile.memory_parts),
        "categories": dict(profile.categories),
        "notes": notes,
        "curve": _batch_curve_page_data(profile),
        "nodes": _node_columns(root, names),
        "tables": _table_columns(profile, names, text_of, most),
        "memory_curve": memory_columns(profile, names.of),
        "names": list(names.known),
    }


def _recorded_step_count(profile: _PageProfile) -> int:
    """Return the number of steps given in a recording's first note; 1 for other profiles."""
    found = [re.fullmatch(r"A mean of (\d+) steps\.", note) for note in profile.notes]
    return next((int(match[1]) for match in found if match), 1)


class _TextIndex:
    """Table of distinct texts, so that the page contains each text once."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


def _node_columns(root: Node, names: _TextIndex) -> dict[str, Any]:
    nodes, parents = _nodes_with_parents(root)
    return {
        "parent": np.array(parents, np.int32),
        "kind": np.array([names.of(n.kind) for n in nodes], np.uint32),
        **_node_figure_columns(nodes, names),
        "held": _sparse_columns([n.held_bytes for n in nodes]),
        "phases": _sparse_columns([{p: part.wall_s for p, part in n.seconds.items()} for n in nodes]),
        "phases_lower": _sparse_columns([phase_interval_ends(n)[0] for n in nodes]),
        "phases_upper": _sparse_columns([phase_interval_ends(n)[1] for n in nodes]),
        "registered": _registered_parameter_columns(nodes, parents, names),
    }


def _registered_parameter_columns(nodes: Sequence[Node], parents: Sequence[int], names: _TextIndex) -> dict[str, Any]:
    """Return columns that pair each line that registers parameters with the nodes that contain these parameters."""
    pairs = dict.fromkeys((names.of(line), parents[n]) for n, node in enumerate(nodes) for line in node.registered)
    return {
        "line": np.array([line for line, _ in pairs], np.uint32), "node": np.array([n for _, n in pairs], np.int32)
    }  # fmt: skip


def _nodes_with_parents(root: Node) -> tuple[list[Node], list[int]]:
    nodes: list[Node] = []
    parents: list[int] = []
    todo = [(root, -1)]
    while todo:
        node, parent = todo.pop()
        nodes.append(node)
        parents.append(parent)
        todo += [(child, len(nodes) - 1) for child in reversed(node.children)]
    return nodes, parents


def _node_figure_columns(rows: Sequence[Node], names: _TextIndex) -> dict[str, Any]:
    reached = [row.share_of_peak for row in rows]
    return {
        "name": np.array([names.of(n.name) for n in rows], np.uint32),
        "calls": np.array([n.calls for n in rows], np.float64),
        "wall_s": np.array([n.wall_s for n in rows]),
        "device_s": np.array([n.device_s for n in rows]),
        "host_s": np.array([n.host_s for n in rows]),
        "held_bytes": np.array([n.total_held_bytes for n in rows], np.float64),
        "bound": np.array([names.of(n.bound) for n in rows], np.uint32),
        "pipe": np.array([names.of(x[0] if x else "") for x in reached], np.uint32),
        "share_of_peak": np.array([x[1] if x else math.nan for x in reached]),
        "intervals": interval_columns(rows),
    }


def _sparse_columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Map each name to the indices of the rows that contain it and to the values in those rows."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            if value:
                places, values = found.setdefault(name, ([], []))
                places.append(number)
                values.append(value)
    return {n: {"row": np.array(p, np.uint32), "value": np.array(v, np.float64)} for n, (p, v) in found.items()}


def _table_columns(profile: _PageProfile, names: _TextIndex, text_of: TextOf | None, most: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lines = _largest_rows(profile.lines, most)
    if lines:
        rows = [
            Node(
                "line", x.name, sum(i.node.calls for i in x.instances), x.seconds, x.held_bytes,
                lower=x.lower, upper=x.upper,
            )
            for x in lines
        ]  # fmt: skip
        found["lines"] = {
            **_node_figure_columns(rows, names),
            "registered_bytes": np.array([x.registered_bytes for x in lines], np.float64),
            "text": np.array([names.of(text_of(x.name) if text_of else "") for x in lines], np.uint32),
        }
    sums = _nodes_by_kind_and_name(profile.root)
    for heading, kind in _TABLES.items():
        if sums.get(kind):
            found[heading] = _node_figure_columns(
                _largest_rows([total.node() for total in sums[kind].values()], most), names
            )
    return found


def _largest_rows(rows: Sequence[_Row], most: int) -> Sequence[_Row]:
    """Return the rows with the most time and memory, in their original order."""
    if len(rows) <= most:
        return rows
    order = sorted(range(len(rows)), key=lambda n: (rows[n].wall_s, rows[n].total_held_bytes), reverse=True)
    return [rows[n] for n in sorted(order[:most])]


@dataclass
class _NodesOfName:
    """Nodes of one kind and name, none of which contains another."""

    kind: Any
    name: str
    nodes: list[Node] = field(default_factory=list)

    def node(self) -> Node:
        return merge_nodes(self.kind, self.name, self.nodes)


def merge_nodes(kind: Any, name: str, nodes: Sequence[Node]) -> Node:
    """Return one node, without children, whose times and bytes are the sums over ``nodes``."""
    seconds, lower, upper = (
        sum_seconds_by_phase(getattr(n, part) for n in nodes) for part in ("seconds", "lower", "upper")
    )
    parts = ("held_bytes", "requested_bytes", "bound_s", "pipe_s")
    held, requested, bound, pipes = (_sum_values_by_name([getattr(n, part) for n in nodes]) for part in parts)
    calls = sum(n.calls for n in nodes)
    return Node(kind, name, calls, seconds, held, requested, bound, pipes, lower=lower, upper=upper)


def _sum_values_by_name(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            found.setdefault(name, []).append(value)
    return {name: math.fsum(values) if isinstance(values[0], float) else sum(values) for name, values in found.items()}


def _nodes_by_kind_and_name(root: Node) -> dict[str, dict[str, _NodesOfName]]:
    """Return nodes by kind and name; a module inside a module of the same name is part of the outer module."""
    found: dict[str, dict[str, _NodesOfName]] = {}
    wanted = set(_TABLES.values())
    todo: list[tuple[Node, str, frozenset[str]]] = [(root, "", frozenset())]
    while todo:
        node, operator, around = todo.pop()
        within = around
        if node.kind in wanted:
            name = f"{operator} {node.name}" if node.kind == "shapes" else node.name
            if node.kind != "module" or name not in around:
                found.setdefault(node.kind, {}).setdefault(name, _NodesOfName(node.kind, name)).nodes.append(node)
            within = around | {name} if node.kind == "module" else around
        inner = node.name if node.kind == "operator" else operator
        todo += [(child, inner, within) for child in node.children]
    return found


def _batch_curve_page_data(profile: _PageProfile) -> dict[str, Any] | None:
    curve = profile.curve
    if curve is None:
        return None
    return {
        "line": None if curve.line is None else curve.line._asdict(),
        "computed": [p._asdict() for p in curve.computed],
        "largest": curve.largest,
        "most_throughput": curve.most_throughput,
        "throughput_at_largest": curve.throughput_at_largest,
        "limit_by": curve.limit_by,
        "most_computed": None if (most := curve.most_computed) is None else most._asdict(),
        "diminishing_from": curve.diminishing_from() if curve.limit_by else None,
        "notes": list(curve.notes),
    }


def merge_small_nodes(root: Node, most: int) -> Node:
    """Limit a tree to about ``most`` nodes by merging the smallest children of each node into one."""
    time, held = root.wall_s or 1.0, root.total_held_bytes or 1
    weights = sorted((max(n.wall_s / time, n.total_held_bytes / held) for n in root.walk()), reverse=True)
    if len(weights) <= most:
        return root
    least = weights[most]
    built: dict[int, Node] = {}
    order = list(root.walk())
    for node in reversed(order):  # children before their parents, without recursion
        kept: list[Node] = []
        small: list[Node] = []
        for child in node.children:
            weight = max(child.wall_s / time, child.total_held_bytes / held)
            (kept if weight > least else small).append(child)
        below = [built.pop(id(child)) for child in kept]
        for child in small:
            built.pop(id(child), None)
        if small:
            below.append(merge_nodes("overhead", f"{len(small)} smaller parts", small))
        built[id(node)] = replace(node, children=tuple(below)) if node.children else node
    return built[id(root)]


def profile_html_for_notebook(profile: _PageProfile) -> str:
    """Return the page as a frame for a notebook, below a table of memory that works without scripts."""
    rows = [(words.replace("_", " "), bytes_text(size)) for words, size in profile.memory_parts.items()]
    title = re.sub(r"(?<=\d )us\b", "µs", str(profile))  # as on the page
    page = html.escape(profile_html(profile), quote=True)
    frame = 'title="Profile of a training step" sandbox="allow-scripts" style="width:100%;height:48rem;border:0"'
    return f'{html_table(title, ("memory at the peak", "size"), rows)}<iframe srcdoc="{page}" {frame}></iframe>'
