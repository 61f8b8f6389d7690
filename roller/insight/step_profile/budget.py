"""Budgets for a profile: limits on the time and memory of a step, its modules and its lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from roller.errors import RollerError, did_you_mean, shown
from roller.insight.step_profile.node import Node
from roller.insight.step_profile.step_profile import StepProfile
from roller_runtime.core.files import read_text, write_atomically

_MIB = 1 << 20
#: Part of a step that a limit applies to.
Part = Literal["step", "module", "line"]
_SECTIONS: Mapping[str, Part] = {"modules": "module", "lines": "line"}
_METRICS = ("time_ms", "memory_mib")
#: Maps each field that identifies the profiled step to its type in a budget file.
_MADE_FOR = {"device": str, "devices": int, "batch": int, "amp": str}
#: Number of significant digits in limits and excesses.
_DIGITS = 4
#: Relative margin of a written budget over its profile.
SLACK = 0.05
_EXAMPLE = "{step: {time_ms: 85, memory_mib: 20000}, modules: {encoder: {time_ms: 30}}}"


@dataclass(frozen=True)
class Limit:
    """Limit on one part of a step."""

    part: Part
    name: str  # path of a module or ``"file:line"``; ``""`` for the step
    metric: str  # ``"time_ms"``: wall time in milliseconds. ``"memory_mib"``: MiB at the peak of total memory.
    most: float


@dataclass(frozen=True)
class Budget:
    """Limits read from a file."""

    limits: tuple[Limit, ...]
    made_with: Mapping[str, str] = field(default_factory=dict)
    made_for: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True)
class Excess:
    """A part of a step that exceeds its limit."""

    limit: Limit
    # Cost of the part, in the unit of the limit; infinite if the step does not fit
    found: float
    # ``"file:line"`` of the line, of the caller of the module, or of the heaviest or failing line of the step
    place: str
    out_of_memory: str = ""

    def __str__(self) -> str:
        limit = self.limit
        what, unit = ("time", "ms") if limit.metric == "time_ms" else ("memory", "MiB")
        part = {"step": "step: ", "module": f"module {limit.name}: ", "line": ""}[limit.part]
        most = _format_four_digits(limit.most)
        if self.out_of_memory:
            return (
                f"{self.place}: {part}expected a {what} of at most {most} {unit}, got a step that does not fit: "
                f"{self.out_of_memory}"
            )
        found, more = _format_four_digits(self.found), _format_four_digits(self.found - limit.most)
        return (
            f"{self.place}: {part}expected a {what} of at most {most} {unit}, got {found} {unit}, {more} {unit} more."
        )


def _format_four_digits(value: float) -> str:
    places = _DIGITS if not value else _DIGITS - 1 - math.floor(math.log10(abs(value)))
    text = f"{value:.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def read_budget(path: str | Path) -> Budget:
    """Read a budget from a YAML file."""
    import yaml

    try:
        data = yaml.safe_load(read_text(path))
    except FileNotFoundError as error:
        raise RollerError(f"{path}: expected a budget, got none. Name one, or write it with --write-budget.") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _invalid_budget_error(
            path, "a YAML file", getattr(error, "strerror", None) or str(error).splitlines()[0]
        ) from error
    known = ("step", *_SECTIONS, "made_for", "made_with")
    if not isinstance(data, Mapping) or not data or not set(data) <= set(known):
        got = data if not isinstance(data, Mapping) else next((x for x in data if x not in known), data)
        raise _invalid_budget_error(path, f"a mapping of {', '.join(known)}", got)
    made_with = data.get("made_with") or {}
    if not isinstance(made_with, Mapping) or not all(isinstance(x, str) for part in made_with.items() for x in part):
        raise _invalid_budget_error(f"{path}: made_with", "a mapping of texts", made_with)
    made_for = data.get("made_for") or {}
    if not isinstance(made_for, Mapping) or not all(type(made_for[x]) is _MADE_FOR.get(x) for x in made_for):
        raise _invalid_budget_error(
            f"{path}: made_for", "device and amp as texts, devices and batch as integers", made_for
        )
    limits = list(_parse_limits(path, "step", "", data.get("step") or {}))
    for section, part in _SECTIONS.items():
        rows = data.get(section) or {}
        if not isinstance(rows, Mapping):
            raise _invalid_budget_error(f"{path}: {section}", "a mapping of names", rows)
        for name, row in rows.items():
            limits += _parse_limits(f"{path}: {section}.{name}", part, str(name), row)
    if not limits:
        raise _invalid_budget_error(path, "at least one limit", data)
    return Budget(tuple(limits), dict(made_with), dict(made_for))


def _parse_limits(where: str | Path, part: Part, name: str, row: Any) -> Iterator[Limit]:
    if not isinstance(row, Mapping):
        raise _invalid_budget_error(where, f"a mapping of {' and '.join(_METRICS)}", row)
    for metric, most in row.items():
        if metric not in _METRICS:
            raise _invalid_budget_error(where, " or ".join(_METRICS), metric)
        if isinstance(most, bool) or not isinstance(most, (int, float)) or not 0 <= most < math.inf:
            raise _invalid_budget_error(f"{where}: {metric}", "a number of at least 0", most)
        yield Limit(part, name, metric, float(most))


def _invalid_budget_error(where: str | Path, expected: str, got: object) -> RollerError:
    return RollerError(f"{where}: expected {expected}, got {shown(got)}. Write e.g. {_EXAMPLE}.")


def write_budget(profile: StepProfile, path: str | Path) -> None:
    """Write a budget from a profile: its step and first-level modules, each with a margin of :data:`SLACK`."""
    import yaml

    if not profile.fits:
        raise RollerError(
            f"budget: expected a step that fits, got one that does not: {profile.out_of_memory} A step that does not "
            f"fit keeps no budget."
        )
    modules = {}
    for name in _outermost_module_names(profile.root):
        wall_s, held = _cost_of_module(profile.root, name)
        modules[name] = _limits_with_slack(wall_s, held)
    data = {
        "step": _limits_with_slack(profile.iteration_s, profile.total_bytes), "modules": modules,
        "made_for": {name: getattr(profile, name) for name in _MADE_FOR if getattr(profile, name)},
        "made_with": dict(profile.versions),
    }  # fmt: skip
    text = yaml.safe_dump({name: part for name, part in data.items() if part}, sort_keys=False)
    with write_atomically(Path(path)) as file:
        file.write(text.encode())


def _limits_with_slack(wall_s: float, held_bytes: int) -> dict[str, float]:
    found = {"time_ms": 1e3 * wall_s, "memory_mib": held_bytes / _MIB}
    return {metric: _round_up_to_four_digits(value * (1 + SLACK)) for metric, value in found.items()}


def _round_up_to_four_digits(value: float) -> float:
    if not value:
        return 0.0
    exponent = math.floor(math.log10(value)) - _DIGITS + 1
    found = float(f"{math.ceil(value / 10.0**exponent)}e{exponent}")
    return found if found >= value else float(f"{math.ceil(value / 10.0**exponent) + 1}e{exponent}")


def _outermost_module_names(root: Node) -> Iterator[str]:
    todo, seen = [root], set[str]()
    while todo:
        node = todo.pop()
        if node.kind == "module":
            if node.name not in seen:
                seen.add(node.name)
                yield node.name
        else:
            todo += reversed(node.children)


def check_budget(profile: StepProfile, budget: Budget) -> tuple[Excess, ...]:
    """Return the exceeded limits in budget order; a step that does not fit exceeds all of them."""
    _check_same_step(profile, budget)
    found = []
    for limit in budget.limits:
        wall_s, held, place = _cost_of_limited_part(profile, limit)
        if not profile.fits:  # its time is hypothetical, and its memory ends at the failure
            found.append(Excess(limit, math.inf, profile.out_of_memory_at or place, profile.out_of_memory))
            continue
        got = 1e3 * wall_s if limit.metric == "time_ms" else held / _MIB
        if got > limit.most:
            found.append(Excess(limit, got, place))
    return tuple(found)


def _check_same_step(profile: StepProfile, budget: Budget) -> None:
    """Raise an error if the profiled step differs from the budget's step."""
    given = {name: getattr(profile, name) for name in budget.made_for}
    if given != budget.made_for:
        wanted, got = (_describe_step(x, budget.made_for, given) for x in (budget.made_for, given))
        raise RollerError(
            f"budget is for {wanted}, the profile for {got}. Profile the step that the budget is for, or write a "
            f"budget of its own with --write-budget."
        )


def _describe_step(one: Mapping[str, object], *both: Mapping[str, object]) -> str:
    """Describe one of two steps: device, batch, and the other fields in which the two steps, ``both``, differ."""
    differs = {name for name in both[0] if both[0][name] != both[1][name]}
    count = f"{one['devices']}x" if "devices" in differs or one.get("devices", 1) != 1 else ""
    parts = [f"{count}{one.get('device') or ('device' if count else '')}"]
    parts += [f"at batch {one['batch']}"] if "batch" in one else []
    parts += [f"in {one['amp']}"] if "amp" in differs else []
    return " ".join(filter(None, parts))


def changed_version_notes(profile: StepProfile, budget: Budget) -> tuple[str, ...]:
    """Return a sentence for each version that differs between a profile and its budget."""
    found = []
    for name, before in budget.made_with.items():
        now = profile.versions.get(name)
        if now == before:
            continue
        both = f"({shown(now)}, not {shown(before)}): that may be the cause."
        if name == "device" and profile.device and budget.made_for.get("device") == profile.device:
            found.append(f"the specification of {profile.device} changed since the budget was written {both}")
        else:
            words = {"roller": "roller's model", "device": "the device or its specification", "torch": "PyTorch"}
            found.append(f"{words.get(name, name)} is another one than the budget's {both}")
    return tuple(found)


def _cost_of_limited_part(profile: StepProfile, limit: Limit) -> tuple[float, int, str]:
    """Return the time (s), the memory in bytes and the ``"file:line"`` of a limited part."""
    if limit.part == "line":
        line = profile.line(limit.name)
        # the bytes of a line that runs include the weights of the modules that it calls
        return line.wall_s, line.total_held_bytes if line.instances else line.registered_bytes, limit.name
    if limit.part == "module":
        wall_s, held = _cost_of_module(profile.root, limit.name)
        return (
            wall_s,
            held,
            _name_of_line_calling_module(profile.root, limit.name) or _heaviest_line_name(profile, limit.metric),
        )
    return profile.iteration_s, profile.total_bytes, _heaviest_line_name(profile, limit.metric)


def _heaviest_line_name(profile: StepProfile, metric: str) -> str:
    """Return the innermost line on the heaviest path; if the path has none, the heaviest line or the file's line 1."""
    way = profile.heaviest("time" if metric == "time_ms" else "memory")
    lines = [node.name for node in way if node.kind == "line"]
    if lines:
        return lines[-1]
    own: dict[str, float] = {}
    todo = [(profile.root, "")]
    while todo:  # the heaviest node may be outside all lines
        node, line = todo.pop()
        within = node.name if node.kind == "line" else line
        if within and not node.children:
            value = node.wall_s if metric == "time_ms" else float(node.total_held_bytes)
            own[within] = own.get(within, 0.0) + value
        todo += [(child, within) for child in node.children]
    known = own or {line.name: float(line.registered_bytes) for line in profile.lines}
    return max(known, key=lambda name: known[name], default=f"{profile.name or 'step'}:1")


def _cost_of_module(root: Node, name: str) -> tuple[float, int]:
    found = list(_outermost_nodes_of_module(root, name))
    if not found:
        known = list(dict.fromkeys(node.name for node in root.walk() if node.kind == "module"))
        more = f" and {len(known) - 8} more" if len(known) > 8 else ""
        raise RollerError(
            f"budget: modules: expected a module of the step, got {shown(name)}{did_you_mean(name, known)}. Modules "
            f"that run: {', '.join(known[:8]) or 'none'}{more}."
        )
    return math.fsum(node.wall_s for node in found), sum(node.total_held_bytes for node in found)


def _outermost_nodes_of_module(root: Node, name: str) -> Iterator[Node]:
    """Yield the outermost nodes of a module; if it has no node of its own, yield those of its submodules."""
    todo = [root]
    while todo:
        node = todo.pop()
        if node.kind == "module" and (node.name == name or node.name.startswith(name + ".")):
            yield node
        else:
            todo += reversed(node.children)


def _name_of_line_calling_module(root: Node, name: str) -> str:
    todo = [(root, "")]
    while todo:
        node, line = todo.pop()
        if node.kind == "module" and (node.name == name or node.name.startswith(name + ".")):
            return line
        within = node.name if node.kind == "line" else line
        todo += [(child, within) for child in reversed(node.children)]
    return ""


def excesses_to_sarif(excesses: tuple[Excess, ...], notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return excesses in SARIF 2.1.0, the format of code scanning."""
    rules = [
        {"id": f"budget/{metric}", "shortDescription": {"text": f"A part of a training step exceeds its {metric}."}}
        for metric in _METRICS
    ]
    results = [_sarif_result(excess, notes) for excess in excesses]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "roller", "rules": rules}}, "results": results}],
    }


def _sarif_result(excess: Excess, notes: tuple[str, ...]) -> dict[str, Any]:
    file, _, line = excess.place.rpartition(":")  # code scanning rejects the whole log if a result has no location
    region = {"startLine": int(line)}
    return {
        "ruleId": f"budget/{excess.limit.metric}",
        "level": "error",
        "message": {"text": " ".join([str(excess), *notes])},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(file)}, "region": region}}],
    }
