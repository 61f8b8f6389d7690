"""Tables of a profile: the tree, the lines, the memory at its peak, and the batch curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from roller.cli.training_options import MIB
from roller.errors import printable

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.step_profile.batch_curve import BatchCurve
    from roller.insight.step_profile.lines import Line
    from roller.insight.step_profile.node import Node
    from roller.insight.step_profile.step_profile import StepProfile

#: Smallest share of the step's time or memory at which a node is printed, and at which its children are.
_PRINTED, _EXPANDED = 0.005, 0.04
#: Remaining nodes that take no time and hold fewer bytes than this are not printed.
_PRINTED_BYTES = MIB / 2
#: Steps shorter than this are printed in microseconds.
_SHORT_S = 0.01
#: Smallest share of a pipe's peak rate that is printed.
_NOTABLE = 0.01
#: Largest relative time difference of modules that are printed as one row.
_ALIKE = 0.02
#: Terminal width from which all columns are printed; width of the columns after the first, with all columns and with
#: fewer; minimum width of the first column.
_WIDE, _REST, _REST_NARROW, _LEAST = 100, 68, 43, 23
#: Width of the other columns in the table of lines; minimum width of the column with a line's text.
_REST_OF_LINES, _LEAST_TEXT = 55, 12


def print_profile(screen: Screen, profile: StepProfile, depth: int, top: int, order: str, file: Path) -> None:
    """Print the tree, lines, memory and categories of a profile."""
    screen.say(printable(str(profile)))
    if profile.out_of_memory:
        screen.say(f"It does not fit: {printable(profile.out_of_memory)} Memory is that before the failure.")
    screen.print(_tree_table(profile, depth, top, order, screen.width))
    if profile.lines:
        screen.print(_lines_table(profile, top, order, file, screen.width))
    if profile.total_bytes:
        screen.print(_peak_memory_table(profile))
    if profile.categories:
        screen.print(_categories_table(profile))
    if profile.curve is not None:
        screen.print(_batch_curve_table(profile.curve, screen.width))
        for line in _curve_sentences(profile.curve):
            screen.say(line)
    for note in profile.notes:
        screen.say(printable(note))


class _TreeRow(NamedTuple):
    """A tree row for one node or several similar ones; ``modules`` names the modules that contain the nodes."""

    nodes: Sequence[Node]
    modules: Sequence[str]
    level: int
    alike: int = 0
    rest: int = 0


def _tree_table(profile: StepProfile, depth: int, top: int, order: str, width: int) -> Table:
    wide = width >= _WIDE
    columns = ("time", "share", "memory", "calls", "bound, of peak") if wide else ("time", "memory", "bound")
    table = Table("what", *columns, box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    most = max(_LEAST, width - (_REST if wide else _REST_NARROW))
    for row in _visible_tree_rows(profile, depth, top, order):
        time, share, memory = _time_share_memory_texts(
            profile, sum(n.wall_s for n in row.nodes), sum(n.total_held_bytes for n in row.nodes)
        )
        indent, calls, bound = (2 if wide else 1) * row.level * " ", "", ""
        if row.rest:
            name = f"{row.rest} other{'s' * (row.rest > 1)}"
        else:
            alike = f" and {row.alike - 1} alike" if row.alike > 1 else ""
            shortened = _truncate_start if row.nodes[0].kind == "line" else _truncate_end
            name = shortened(_node_name(row.nodes[0], row.modules[0]), most - len(indent) - len(alike)) + alike
            calls, bound = str(sum(n.calls for n in row.nodes) or ""), _bottleneck_text(row.nodes[0], wide)
        cells = (time, share, memory, calls, bound) if wide else (time, memory, bound)
        table.add_row(indent + name, *cells)
    return table


def _bottleneck_text(node: Node, wide: bool) -> str:
    reached, share = node.share_of_peak, ""
    if reached is not None and reached[1] >= _NOTABLE:
        share = f"{100 * reached[1]:.0f} %{f' of {reached[0]}' if wide else ''}"
    return printable(", ".join(filter(None, (node.bound, share))))


def _node_name(node: Node, parent: str) -> str:
    """Return the name of a node; for a module, without its parent's prefix."""
    name = printable(node.name).replace("\n", " ")
    if node.kind == "module" and parent and name.startswith(parent + "."):
        return name[len(parent) :]
    return f"host: {name}" if node.kind == "call" else name.removeprefix("aten.").removeprefix("aten::")


def _truncate_end(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(1, most - 3)] + "..."


def _truncate_start(name: str, most: int) -> str:
    """Truncate ``file:line`` at the start, since the end distinguishes lines."""
    return name if len(name) <= most else "..." + name[-max(1, most - 3) :]


def _time_share_memory_texts(profile: StepProfile, wall_s: float, held_bytes: int) -> tuple[str, str, str]:
    share = 100 * wall_s / profile.iteration_s if profile.iteration_s else 0.0
    time = (_time_text(wall_s, profile.iteration_s), f"{share:.1f} %") if wall_s else ("", "")
    return *time, _memory_text(held_bytes)


def _memory_text(size: float) -> str:
    """Format a size in bytes in MiB; return ``""`` for zero."""
    return f"{size / MIB:.0f} MiB" if size >= MIB else "< 1 MiB" if size > 0 else ""


def _time_text(seconds: float, longest_s: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if longest_s >= _SHORT_S else f"{seconds * 1e6:.2f} us"


def _visible_tree_rows(profile: StepProfile, depth: int, top: int, order: str) -> Iterator[_TreeRow]:
    """Yield rows in preorder; small siblings share a row, and so do sibling modules with almost equal times."""

    def share(nodes: Sequence[Node]) -> float:
        wall = sum(n.wall_s for n in nodes) / (profile.iteration_s or 1.0)
        held = sum(n.total_held_bytes for n in nodes) / (profile.total_bytes or 1)
        return max(wall, held)

    todo = [_TreeRow([profile.root], [""], 0)]
    while todo:
        row = todo.pop()
        yield row
        if row.rest or row.level == depth or share(row.nodes) < _EXPANDED:
            continue
        groups = sorted(_group_children(row), key=lambda group: _nodes_sort_key(group.nodes, order), reverse=True)
        own = [
            g for g in groups if g.nodes[0].kind == "overhead" and any(_nodes_sort_key(g.nodes, order))
        ]  # may be negative
        others = [g for g in groups if g.nodes[0].kind != "overhead"]
        shown = [g for g in others if share(g.nodes) >= _PRINTED][:top]
        rest = [g for g in others if not any(g is one for one in shown)]
        nodes = [n for g in rest for n in g.nodes]
        wall, held = _nodes_sort_key(nodes, "time")
        if wall or held >= _PRINTED_BYTES:
            shown.append(_TreeRow(nodes, [""] * len(nodes), row.level + 1, rest=len(rest)))
        todo += reversed([*shown, *own])  # time outside operators keeps its own row


def _nodes_sort_key(nodes: Sequence[Node], order: str) -> tuple[float, float]:
    wall, held = sum(n.wall_s for n in nodes), float(sum(n.total_held_bytes for n in nodes))
    return (held, wall) if order == "memory" else (wall, held)


def _group_children(row: _TreeRow) -> list[_TreeRow]:
    """Return rows for a row's children; merge similar modules, and children with the same name in several nodes."""
    named: dict[tuple[str, str], list[tuple[Node, str]]] = {}
    groups: list[list[tuple[Node, str]]] = []
    for node, module in zip(row.nodes, row.modules, strict=True):
        within = node.name if node.kind == "module" else module
        for child in node.children:
            if len(row.nodes) > 1:
                named.setdefault((child.kind, child.name.removeprefix(within)), []).append((child, within))
            elif groups and _are_similar_modules(child, groups[-1][0][0]):
                groups[-1].append((child, within))
            else:
                groups.append([(child, within)])
    found = []
    for group in [*named.values(), *groups]:
        if not named and len(group) > 1:
            group.sort(key=lambda pair: (len(pair[0].name), pair[0].name))
        alike = 0 if named else len(group)
        found.append(_TreeRow([node for node, _ in group], [module for _, module in group], row.level + 1, alike))
    return found


def _are_similar_modules(node: Node, other: Node) -> bool:
    is_module = node.kind == other.kind == "module" and node.calls == other.calls
    return is_module and abs(node.wall_s - other.wall_s) <= _ALIKE * other.wall_s


def _lines_table(profile: StepProfile, top: int, order: str, file: Path, width: int) -> Table:
    from roller.insight.step_profile.source_line_reader import source_line_reader

    lines = sorted(profile.lines, key=lambda line: _line_sort_key(line, order), reverse=True)
    shown = sorted(lines[: 2 * top], key=lambda x: (x.file, x.line))
    wide = width >= _WIDE
    most = max(_LEAST_TEXT, width - max((len(line.name) for line in shown), default=0) - _REST_OF_LINES)
    text_of = source_line_reader(file)
    texts = {line.name: text_of(line.name) for line in shown if wide}
    columns = ("time", "share", "memory", "weights made here") if wide else ("time", "memory", "weights")
    has_text = any(texts.values())  # a saved profile may be far from its sources
    table = Table("line", *columns, *(["text"] * has_text), box=None)
    for column in table.columns[1 : 1 + len(columns)]:
        column.justify = "right"
    for line in shown:
        made = _memory_text(line.registered_bytes)
        time, share, memory = _time_share_memory_texts(profile, line.wall_s, line.total_held_bytes)
        cells: tuple[str, ...] = (time, memory, made)
        if wide:
            cells = (time, share, memory, made, *([_truncate_end(printable(texts[line.name]), most)] * has_text))
        table.add_row(printable(line.name), *cells)
    if len(lines) > len(shown):
        left_out = len(lines) - len(shown)
        table.caption, table.caption_justify = f" {left_out} more line{'s' * (left_out > 1)}", "left"
    return table


def _line_sort_key(line: Line, order: str) -> tuple[float, float]:
    wall, held = line.wall_s, float(line.total_held_bytes + line.registered_bytes)
    return (held, wall) if order == "memory" else (wall, held)


def _peak_memory_table(profile: StepProfile) -> Table:
    table = Table("memory at the total's peak", "MiB", "share", box=None)
    for column in (1, 2):
        table.columns[column].justify = "right"
    for kind, size in sorted(profile.memory_parts.items(), key=lambda part: -part[1]):
        if not size:
            continue
        share = f"{100 * size / profile.total_bytes:.1f} %"
        table.add_row(printable(kind).replace("_", " "), f"{size / MIB:.1f}", share)
    table.add_row("total", f"{profile.total_bytes / MIB:.1f}", "")
    return table


def _categories_table(profile: StepProfile) -> Table:
    table = Table("category", "time", "share", box=None)
    for column in (1, 2):
        table.columns[column].justify = "right"
    whole = sum(profile.categories.values()) or 1.0
    for name, took in profile.categories.items():
        if not took:
            continue
        table.add_row(printable(name), f"{took * 1e3:.3f} ms", f"{100 * took / whole:.1f} %")
    return table


def _batch_curve_table(curve: BatchCurve, width: int) -> Table:
    line_there = "by the line" if width >= _WIDE else "line"
    table = Table("batch", "time", "samples/s", line_there, "allocated", line_there, "total", "bound", box=None)
    for column in range(7):
        table.columns[column].justify = "right"
    line, longest_s = curve.line, max((point.iteration_s for point in curve.computed), default=0.0)
    for point in curve.computed:
        by_line = ("", "")
        if line is not None:
            by_line = f"{line.throughput(point.batch):.1f}", _memory_text(line.allocated_bytes(point.batch))
        sampled = "*" if line is not None and point.batch in line.batches else ""
        table.add_row(
            f"{sampled}{point.batch}", _time_text(point.iteration_s, longest_s),
            f"{point.throughput:.1f}" if point.fits else "does not fit", by_line[0],
            _memory_text(point.allocated_bytes), by_line[1], _memory_text(point.total_bytes), point.bound,
        )  # fmt: skip
    return table


def _curve_sentences(curve: BatchCurve) -> Iterator[str]:
    at_largest = ""
    if curve.largest:
        at_largest = f"{curve.throughput_at_largest:.1f} with the largest batch that fits, {curve.largest}"
    if curve.line is not None and curve.limit_by == "line":
        largest = f", {at_largest}" if at_largest else ""
        yield f"* The line goes through these. At most {curve.most_throughput:.1f} samples/s in the limit{largest}."
    elif curve.line is not None:
        yield "* The line goes through these."
    if (most := curve.most_computed) is not None:
        largest = f"; {at_largest}" if at_largest and most.batch != curve.largest else ""
        yield f"By the computed batches, at most {most.throughput:.1f} samples/s, with batch {most.batch}{largest}."
    if curve.limit_by:
        by = "line" if curve.limit_by == "line" else "computed batches"
        begins = curve.diminishing_from()
        yield f"By the {by}, twice the batch brings less than a tenth more throughput from batch {begins} on."
    yield from curve.notes
