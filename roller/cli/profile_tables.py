"""A profile as tables: the tree, its lines, the memory at the peak, and the curve of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from roller.cli.common import seconds
from roller.cli.training import MIB
from roller.core.files import read_text
from roller.errors import printable

if TYPE_CHECKING:
    from roller.cli.screen import Screen
    from roller.insight.step_profile.batch_curve import BatchCurve
    from roller.insight.step_profile.lines import Line
    from roller.insight.step_profile.node import Node
    from roller.insight.step_profile.step_profile import StepProfile

#: Share of the step's time or memory from which on a node is printed, and from which on its children are.
_PRINTED, _EXPANDED = 0.005, 0.04
#: A shorter step is printed in microseconds.
_SHORT_S = 0.01
#: Relative difference of the times of modules that are printed as one.
_ALIKE = 0.02
#: Width from which on a table has all columns; columns besides the first one, and the least for that.
_WIDE, _REST, _REST_NARROW, _LEAST = 100, 66, 48, 23


def print_profile(screen: Screen, profile: StepProfile, depth: int, top: int, order: str, file: Path) -> None:
    """Print a profile.

    Parameters
    ----------
    screen
        The console.
    profile
        The profile.
    depth, top
        Levels of the tree, and children of a node and lines to print.
    order
        ``"time"`` or ``"memory"``.
    file
        The entry file: the text of lines is looked for beside it and above it.
    """
    screen.say(headline(profile))
    if profile.out_of_memory:
        screen.say(f"It does not fit: {printable(profile.out_of_memory)} Memory is that before the failure.")
    screen.print(_tree(profile, depth, top, order, screen.width))
    if profile.lines:
        screen.print(_lines(profile, top, order, file, screen.width))
    if profile.total_bytes:
        screen.print(_memory(profile))
    if profile.categories:
        screen.print(_categories(profile))
    if profile.curve is not None:
        screen.print(_curve(profile.curve))
        for line in _curve_sentences(profile.curve):
            screen.say(line)
    for note in profile.notes:
        screen.say(printable(note))


def headline(profile: StepProfile) -> str:
    """Return the profile in a sentence."""
    apart = f" ({seconds(profile.lower_s)} to {seconds(profile.upper_s)})" if profile.upper_s > profile.lower_s else ""
    count = f"{profile.devices}x" if profile.devices > 1 else ""
    parts = [
        f"{printable(profile.name)}: {profile.source} on {count}{printable(profile.device) or 'an unnamed device'}",
        *([f"batch {profile.batch}"] if profile.batch else []),
        *([printable(profile.amp)] if profile.amp != "fp32" else []),
        f"{seconds(profile.iteration_s)} a step{apart}",
    ]
    if profile.throughput:
        parts.append(f"{profile.throughput:.1f} samples/s")
    if profile.total_bytes:
        of = f" of {profile.capacity_bytes / MIB:.0f}" if profile.capacity_bytes else ""
        parts.append(f"{profile.total_bytes / MIB:.0f}{of} MiB")
    if profile.bound:
        parts.append(f"bound by the {printable(profile.bound)}")
    return ", ".join(parts) + "."


class _Row(NamedTuple):
    """A row of the tree: a node, or several, whose children are summed by name; ``rest`` others are left out."""

    nodes: Sequence[Node]
    level: int
    parent: str
    alike: int = 0
    rest: int = 0


def _tree(profile: StepProfile, depth: int, top: int, order: str, width: int) -> Table:
    wide = width >= _WIDE
    columns = ("time", "share", "memory", "calls", "bound, of peak") if wide else ("time", "memory", "bound")
    table = Table("what", *columns, box=None)
    for column in table.columns[1:-1]:
        column.justify = "right"
    most = max(_LEAST, width - (_REST if wide else _REST_NARROW))
    for row in _rows(profile, depth, top, order):
        time, share, memory = _numbers(
            profile, sum(n.wall_s for n in row.nodes), sum(n.total_held_bytes for n in row.nodes)
        )
        indent, calls, bound = (2 if wide else 1) * row.level * " ", "", ""
        if row.rest:
            name = f"{row.rest} other{'s' * (row.rest > 1)}"
        else:
            alike = f" and {row.alike - 1} alike" if row.alike > 1 else ""
            name = _shortened(_name(row.nodes[0], row.parent), most - len(indent) - len(alike)) + alike
            calls, bound = str(sum(n.calls for n in row.nodes) or ""), _bound(row.nodes[0], wide)
        cells = (time, share, memory, calls, bound) if wide else (time, memory, bound)
        table.add_row(indent + name, *cells)
    return table


def _bound(node: Node, wide: bool) -> str:
    reached = node.share_of_peak
    share = "" if reached is None else f"{100 * reached[1]:.0f} %"
    if wide and reached is not None:
        share = f"{share} of {reached[0]}"
    return printable(", ".join(filter(None, (node.bound, share))))


def _name(node: Node, parent: str) -> str:
    """Return the name of a node, of a module without that of the module around it."""
    name = printable(node.name).replace("\n", " ")
    if node.kind == "module" and parent and name.startswith(parent + "."):
        return name[len(parent) :]
    return f"host: {name}" if node.kind == "call" else name.removeprefix("aten.")


def _shortened(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(1, most - 3)] + "..."


def _numbers(profile: StepProfile, wall_s: float, held_bytes: int) -> tuple[str, str, str]:
    share = 100 * wall_s / profile.iteration_s if profile.iteration_s else 0.0
    scale, unit = (1e3, "ms") if profile.iteration_s >= _SHORT_S else (1e6, "us")
    time = (f"{wall_s * scale:.2f} {unit}", f"{share:.1f} %") if wall_s else ("", "")
    return *time, f"{held_bytes / MIB:.0f} MiB" if held_bytes >= MIB / 2 else ""


def _rows(profile: StepProfile, depth: int, top: int, order: str) -> Iterator[_Row]:
    """Yield rows in preorder: what is small is one row, and modules of equal cost are one."""

    def share(nodes: Sequence[Node]) -> float:
        wall = sum(n.wall_s for n in nodes) / (profile.iteration_s or 1.0)
        held = sum(n.total_held_bytes for n in nodes) / (profile.total_bytes or 1)
        return max(wall, held)

    todo = [_Row([profile.root], 0, "")]
    while todo:
        row = todo.pop()
        yield row
        node = row.nodes[0]
        if row.rest or row.level == depth or share(row.nodes) < _EXPANDED:
            continue
        within = node.name if node.kind == "module" else row.parent
        groups = sorted(_groups(row.nodes), key=lambda group: _weight(group[0], order), reverse=True)
        shown = [group for group in groups if share(group[0]) >= _PRINTED][:top]
        rest = [group for group in groups if not any(group is one for one in shown)]
        below = [_Row(nodes, row.level + 1, within, alike) for nodes, alike in shown]
        if rest:
            below.append(_Row([n for nodes, _ in rest for n in nodes], row.level + 1, within, rest=len(rest)))
        todo += reversed(below)


def _weight(nodes: Sequence[Node], order: str) -> tuple[float, float]:
    wall, held = sum(n.wall_s for n in nodes), float(sum(n.total_held_bytes for n in nodes))
    return (held, wall) if order == "memory" else (wall, held)


def _groups(nodes: Sequence[Node]) -> list[tuple[list[Node], int]]:
    """Return the children of a row, and how many siblings each stands for: of several nodes those of one name are one.

    Modules with equal numbers of operators and, within 2 %, of seconds are alike.
    """
    if len(nodes) > 1:
        named: dict[tuple[str, str], list[Node]] = {}
        for node in nodes:
            for child in node.children:
                named.setdefault((child.kind, child.name.removeprefix(node.name)), []).append(child)
        return [(group, 0) for group in named.values()]
    groups: list[list[Node]] = []
    for child in nodes[0].children:
        last = groups[-1][0] if groups else None
        if (
            last is not None and child.kind == last.kind == "module" and child.calls == last.calls
            and abs(child.wall_s - last.wall_s) <= _ALIKE * last.wall_s
        ):  # fmt: skip
            groups[-1].append(child)
        else:
            groups.append([child])
    return [(group, len(group)) for group in groups]


def _lines(profile: StepProfile, top: int, order: str, file: Path, width: int) -> Table:
    lines = sorted(profile.lines, key=lambda line: _line_weight(line, order), reverse=True)
    shown = sorted(lines[: 2 * top], key=lambda x: (x.file, x.line))
    wide = width >= _WIDE
    columns = ("time", "share", "memory", "weights made here", "text") if wide else ("time", "memory", "weights")
    table = Table("line", *columns, box=None)
    for column in table.columns[1 : 5 if wide else 4]:
        column.justify = "right"
    texts = {name: _text_of(name, file) for name in dict.fromkeys(line.file for line in shown)}
    for line in shown:
        made = f"{line.registered_bytes / MIB:.0f} MiB" if line.registered_bytes else ""
        time, share, memory = _numbers(profile, line.wall_s, line.total_held_bytes)
        cells: tuple[str, ...] = (time, memory, made)
        if wide:
            known = texts[line.file]
            text = known[line.line - 1].strip() if 0 < line.line <= len(known) else ""
            cells = time, share, memory, made, _shortened(printable(text), max(_LEAST, width - _REST - 16))
        table.add_row(printable(line.name), *cells)
    if len(lines) > len(shown):
        table.caption = f"{len(lines) - len(shown)} more lines"
    return table


def _line_weight(line: Line, order: str) -> tuple[float, float]:
    wall, held = line.wall_s, float(line.total_held_bytes + line.registered_bytes)
    return (held, wall) if order == "memory" else (wall, held)


def _text_of(name: str, file: Path) -> list[str]:
    """Return the lines of a file of the project, looked for beside the entry file and above it; none if it is gone."""
    for folder in file.resolve().parents:
        if (folder / name).is_file():
            try:
                return read_text(folder / name).splitlines()
            except (OSError, ValueError):
                return []
    return []


def _memory(profile: StepProfile) -> Table:
    table = Table("memory at the total's peak", "MiB", "share", box=None)
    for column in (1, 2):
        table.columns[column].justify = "right"
    for kind, size in profile.memory_parts.items():
        share = f"{100 * size / profile.total_bytes:.1f} %"
        table.add_row(printable(kind).replace("_", " "), f"{size / MIB:.1f}", share)
    table.add_row("total", f"{profile.total_bytes / MIB:.1f}", "")
    return table


def _categories(profile: StepProfile) -> Table:
    table = Table("category", "time", "share", box=None)
    for column in (1, 2):
        table.columns[column].justify = "right"
    whole = sum(profile.categories.values()) or 1.0
    for name, took in profile.categories.items():
        table.add_row(printable(name), f"{took * 1e3:.3f} ms", f"{100 * took / whole:.1f} %")
    return table


def _curve(curve: BatchCurve) -> Table:
    table = Table("batch", "time", "samples/s", "by the line", "allocated", "by the line", "total", "bound", box=None)
    for column in range(7):
        table.columns[column].justify = "right"
    line = curve.line
    for point in curve.computed:
        by_line = ("", "")
        if line is not None:
            by_line = f"{line.throughput(point.batch):.1f}", f"{line.allocated_bytes(point.batch) / MIB:.0f} MiB"
        sampled = "*" if line is not None and point.batch in line.batches else ""
        table.add_row(
            f"{sampled}{point.batch}", f"{point.iteration_s * 1e3:.3f} ms",
            f"{point.throughput:.1f}" if point.fits else "does not fit", by_line[0],
            f"{point.allocated_bytes / MIB:.0f} MiB", by_line[1], f"{point.total_bytes / MIB:.0f} MiB", point.bound,
        )  # fmt: skip
    return table


def _curve_sentences(curve: BatchCurve) -> Iterator[str]:
    if curve.line is not None and curve.line.holds:
        largest = ""
        if curve.largest:
            largest = f", {curve.throughput_at_largest:.1f} with the largest batch that fits, {curve.largest}"
        yield f"* The line goes through these. At most {curve.most_throughput:.1f} samples/s in the limit{largest}."
        yield f"From batch {curve.diminishing_from()} on, twice the batch brings less than a tenth more throughput."
    yield from curve.notes
