"""Code lenses, hovers and inlay hints for a profile in a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lsprotocol import types

from roller.insight.step_profile.earlier_revision_and_moved_lines import split_source_lines
from roller.insight.step_profile.lines import Line
from roller.server.lsp.editor_session import DocumentLines, EditorSession
from roller.server.lsp.number_texts import (
    device_text,
    interval_text,
    markdown_code,
    pipe_text,
    share_text,
    size_text,
    time_text,
)
from roller.server.lsp.positions import Encoding, LineInDocument, length_in_units, range_of_line
from roller.server.lsp.profile_figures import PartFigures, ProfileFigures, sum_over_instances

#: Maximum number of lenses per line, and of instances in a hover.
_MOST_LENSES, _MOST_INSTANCES = 3, 5
_STALE = " · stale"


def code_lenses(shown: EditorSession, name: str, text: str, uri: str, encoding: Encoding) -> list[types.CodeLens]:
    """Return the code lenses for a document: for the step, for classes, and for lines that call modules."""
    placement, figures = shown.lines_in_document(name, text), shown.figures
    if placement is None or figures is None:
        return []
    lines = split_source_lines(text)

    def lens(at: LineInDocument, title: str, command: tuple[str, str], data: Mapping[str, Any]) -> types.CodeLens:
        stale = _STALE if placement.is_stale or at.is_changed else ""
        action, argument = command
        return types.CodeLens(
            range_of_line(lines, at.line, encoding),
            types.Command(
                title + stale, action, arguments=[uri, argument, True] if action == "roller.drill" else [uri]
            ),
            {**data, "label": figures.profile.source, "stale": bool(stale)},
        )

    found = [
        lens(placement.lines[line], _step_title(figures), ("roller.drill", ""), _step_data(figures))
        for file, line in figures.steps.items()
        if file == name and line in placement.lines
    ]
    for title, at, part, instance in _class_and_call_lenses(figures, placement):
        found.append(lens(at, title, ("roller.drill", instance), _part_data(part)))
    return found


def _class_and_call_lenses(
    figures: ProfileFigures, placement: DocumentLines
) -> Iterator[tuple[str, LineInDocument, PartFigures, str]]:
    """Yield each lens's title, line, part and drill argument, for classes and for lines that call modules."""
    for (file, line), part in figures.classes.items():
        if file == placement.name and line in placement.lines:
            count = len(part.instances)
            title = (
                f"{part.name}: " + (f"{count} instances, " if count > 1 else "") + _time_and_memory_text(figures, part)
            )
            yield title, placement.lines[line], part, part.instances[0]
    for (file, line), parts in figures.calls.items():
        if file != placement.name or line not in placement.lines:
            continue
        for part in parts[:_MOST_LENSES]:
            yield f"{part.name}: {_time_and_memory_text(figures, part)}", placement.lines[line], part, part.name
        rest = parts[_MOST_LENSES:]
        if rest:
            others = PartFigures(
                "", sum(p.wall_s for p in rest), sum(p.held_bytes for p in rest), tuple(p.name for p in rest)
            )
            title = f"{len(rest)} more: {_time_and_memory_text(figures, others)}"
            yield title, placement.lines[line], others, f"{file}:{line}"


def _time_and_memory_text(figures: ProfileFigures, part: PartFigures | Line) -> str:
    profile = figures.profile
    held = part.held_bytes if isinstance(part, PartFigures) else part.total_held_bytes
    return (
        f"{time_text(part.wall_s)} ({share_text(part.wall_s, profile.iteration_s)}), {size_text(held)} · "
        f"{device_text(figures.data['profile'])} · {profile.source}"
    )


def _part_data(part: PartFigures) -> dict[str, Any]:
    return {
        "name": part.name, "wall_s": part.wall_s, "held_bytes": part.held_bytes, "instances": list(part.instances)
    }  # fmt: skip


def _step_title(figures: ProfileFigures) -> str:
    profile = figures.profile
    interval = interval_text(profile.lower_s, profile.upper_s)
    capacity = f" of {size_text(profile.capacity_bytes)}" if profile.capacity_bytes else ""
    fits = "" if profile.fits else " · does not fit"
    return (
        f"step: {time_text(profile.iteration_s)}{f' ({interval})' if interval else ''}, "
        f"{size_text(profile.total_bytes)}{capacity} · batch {profile.batch} · "
        f"{device_text(figures.data['profile'])} · {profile.source}{fits}"
    )


def _step_data(figures: ProfileFigures) -> dict[str, Any]:
    profile = figures.data["profile"]
    names = ("iteration_s", "lower_s", "upper_s", "total_bytes", "capacity_bytes", "batch", "device", "devices")
    return {name: profile[name] for name in names}


def inlay_hints(
    shown: EditorSession, name: str, text: str, within: types.Range, encoding: Encoding
) -> list[types.InlayHint]:  # fmt: skip
    """Return inlay hints with time and memory for a range of lines."""
    placement, figures = shown.lines_in_document(name, text), shown.figures
    if placement is None or figures is None:
        return []
    lines, found = split_source_lines(text), []
    for number, line in figures.lines.get(name, {}).items():
        at = placement.lines.get(number)
        if at is None or not within.start.line <= at.line - 1 <= within.end.line:
            continue
        held = line.total_held_bytes or line.registered_bytes
        parts = [time_text(line.wall_s)] if line.wall_s else []
        parts += [size_text(held)] if held else []
        if not parts:
            continue
        stale = placement.is_stale or at.is_changed
        place = types.Position(at.line - 1, length_in_units(lines[at.line - 1], encoding))
        data = {**line_figures_data(figures, line), "stale": stale}
        label = ", ".join(parts) + (" (stale)" if stale else "")
        found.append(types.InlayHint(place, label, padding_left=True, tooltip=figures.profile.source, data=data))
    return sorted(found, key=lambda hint: hint.position.line)


def line_figures_data(figures: ProfileFigures, line: Line) -> dict[str, Any]:
    """Return the figures of a line without rounding."""
    kernel = figures.kernels.get(line.name)
    return {
        "file": line.file, "line": line.line, "wall_s": line.wall_s, "held_bytes": line.total_held_bytes,
        "registered_bytes": line.registered_bytes, "bound_s": sum_over_instances(line, "bound_s"),
        "pipe_s": sum_over_instances(line, "pipe_s"), "kernel": None if kernel is None else {"name": kernel[0],
                                                                                             "s": kernel[1]},
        "label": figures.profile.source, "device": figures.profile.device,
        "instances": [
            {"module": i.module, "wall_s": i.node.wall_s, "held_bytes": i.node.total_held_bytes}
            for i in line.instances
        ],
    }  # fmt: skip


def profiled_line_at(shown: EditorSession, name: str, text: str, line: int) -> tuple[Line, bool] | None:
    """Return the profile's line for a document's line (from 1), and whether it is stale; ``None`` if there is none."""
    placement, figures = shown.lines_in_document(name, text), shown.figures
    place = None if placement is None else placement.profile_line_and_staleness(line)
    if place is None or figures is None:
        return None
    found = figures.lines.get(name, {}).get(place[0])
    return None if found is None else (found, place[1])


def hover_at(shown: EditorSession, name: str, text: str, at: types.Position, encoding: Encoding) -> types.Hover | None:
    """Return the hover for the line at a position; ``None`` if the line is not profiled."""
    found = profiled_line_at(shown, name, text, at.line + 1)
    if found is None or shown.figures is None:
        return None
    content = types.MarkupContent(types.MarkupKind.Markdown, _hover_text(shown.figures, *found))
    return types.Hover(content, range_of_line(split_source_lines(text), at.line + 1, encoding))


def _hover_text(figures: ProfileFigures, line: Line, is_stale: bool) -> str:
    profile = figures.profile
    said = ["*Stale: changed since this profile.*"] if is_stale else []
    if line.instances:
        said.append(f"**{_time_and_memory_text(figures, line)}**")
        phases = [f"{name} {time_text(part.wall_s)}" for name, part in line.seconds.items() if part.wall_s]
        said += [", ".join(phases)] if phases else []
        said += _kernel_texts(figures, line)
        held = {kind: size for kind, size in line.held_bytes.items() if size}
        if held:
            largest = sorted(held.items(), key=lambda item: -item[1])
            said.append(
                "At the peak: " + ", ".join(f"{size_text(size)} {kind.replace('_', ' ')}" for kind, size in largest)
            )
    if line.registered_bytes:
        said.append(f"Registers {size_text(line.registered_bytes)} of parameters.")
    modules = [x for x in line.instances if x.module]
    if len(modules) > 1:
        said.append(_instances_text(modules))
    interval = interval_text(profile.lower_s, profile.upper_s)
    if interval:
        said.append(f"Step: {time_text(profile.iteration_s)} ({interval}), {profile.source}.")
    return "\n\n".join(said)


def _kernel_texts(figures: ProfileFigures, line: Line) -> Iterator[str]:
    bounds, pipes = sum_over_instances(line, "bound_s"), sum_over_instances(line, "pipe_s")
    device_s = sum(instance.node.device_s for instance in line.instances)
    said = []
    if bounds:
        bound = max(bounds, key=lambda name: bounds[name])
        whole = time_text(sum(bounds.values()))
        said.append(f"Kernels bound by {bound} take {time_text(bounds[bound])} of {whole}")
    if pipes and device_s:
        pipe = max(pipes, key=lambda name: pipes[name])
        said.append(f"{share_text(pipes[pipe], device_s)} of the device's peak ({pipe_text(pipe)} units)")
    if said:
        yield "; ".join(said)
    kernel = figures.kernels.get(line.name)
    if kernel is not None:
        yield f"Longest kernel: {markdown_code(kernel[0])}, {time_text(kernel[1])}"


def _instances_text(instances: list[Any]) -> str:
    named = ", ".join(f"{markdown_code(x.module)} {time_text(x.node.wall_s)}" for x in instances[:_MOST_INSTANCES])
    rest = len(instances) - _MOST_INSTANCES
    return f"{len(instances)} instances: {named}" + (f" and {rest} more" if rest > 0 else "")
