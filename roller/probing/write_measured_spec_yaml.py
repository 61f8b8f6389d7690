"""Writes measured values into a specification's YAML without changing other values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from roller.errors import SpecError
from roller.hardware import DeviceSpec, parse_spec
from roller.hardware.checks import SOURCES
from roller.hardware.reader import VALIDATED_WITH
from roller.hardware.sections import present_numbers
from roller.hardware.spec import settable_fields
from roller.probing.robust_window_statistics import MeasuredValue
from roller.targets import THIS_MACHINE, canonical_device_name
from roller_runtime.core.files import write_atomically

#: Stamp that an earlier run appended to a note.
_OLD_STAMP = re.compile(r"(; )?probed \d{4}-\d\d-\d\d.*$", re.DOTALL)
_SOURCES_OF = {source: source for source in SOURCES}
#: Paths of the clocks in a file with separate boost and sustained clocks.
_CLOCKS = {"clock_hz": "clock_hz.boost", "sustained_clock_hz": "clock_hz.sustained"}


def insert_measured_values(
    text: str, found: Mapping[str, MeasuredValue], stamp: str, where: str = "the specification"
) -> str:
    """Return a specification's YAML with measured values inserted.

    >>> from roller.hardware import spec_folder
    >>> text = (spec_folder() / "v100.yaml").read_text()
    >>> text = insert_measured_values(text, {"units": MeasuredValue(79, 0.0, 1)}, "probed 2026-05-01 by roller probe")
    >>> [line for line in text.splitlines() if line.startswith("units")]
    ['units: {measured: 79, spread: 0.0, datasheet: 80, note: "probed 2026-05-01 by roller probe, spread 0.0 %"}']
    """
    known = settable_fields(parse_spec(text, where))
    for path, m in found.items():
        if path not in known:
            raise SpecError(f"{where}: {path}: unknown field; the device has none of this name. Correct the probe.")
        value = _format_measured(m.value, known[path].integer)
        note = f"{stamp}, spread {100 * m.spread:.1f} %"
        text = _insert_measured_value(
            text, path, value, f"{m.spread:.4f}".rstrip("0") + ("0" if m.spread < 5e-5 else ""), note
        )
    spec = parse_spec(text, where)
    lost = [p for p in found if spec.sources.get(p) != "measured"]
    if lost:
        raise SpecError(f"{where}: {lost[0]}: the measured value did not arrive in the YAML. Report this file.")
    return text


def mark_errors_validated(text: str, where: str = "the specification") -> str:
    """Return a specification's YAML whose errors are marked as valid for its current values."""
    # Only right after probing a CPU: the errors were found on probed CPUs. An edit of the file ends their validity.
    key = parse_spec(text, where).numbers_key
    return re.sub(rf"(?m)^(  {VALIDATED_WITH}:).*$", rf'\1 "{key}"', text)


def _insert_measured_value(text: str, path: str, value: str, spread: str, note: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)  # the text was parsed as a specification before
    parents, node, key = _find_yaml_node(root, _CLOCKS.get(path, path) if _has_separate_clocks(root) else path)
    if node is None:
        entry = f'{key}: {{measured: {value}, spread: {spread}, note: "{note}"}}'
        return _append_entry(text, parents, entry)
    old = {k.value: v for k, v in node.value}
    edits: list[tuple[int, int, str]] = []
    fresh = []
    for name, new in (("measured", value), ("spread", spread)):
        if name in old:
            edits.append((old[name].start_mark.index, old[name].end_mark.index, new))
        else:
            fresh.append(f"{name}: {new}")
    separator = ", " if node.flow_style else "\n" + " " * node.value[0][0].start_mark.column
    if "note" in old:
        kept = _OLD_STAMP.sub("", old["note"].value)
        edits.append((old["note"].start_mark.index, old["note"].end_mark.index, _format_note(kept, note)))
    elif node.flow_style:
        end = old[node.value[-1][0].value].end_mark.index
        edits.append((end, end, f", note: {_format_note('', note)}"))
    else:
        fresh.append(f"note: {_format_note('', note)}")
    if fresh:
        first = node.value[0][0].start_mark.index
        edits.append((first, first, separator.join(fresh) + separator))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _format_note(kept: str, note: str) -> str:
    text = f"{kept}; {note}" if kept else note
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'


def _find_yaml_node(root: yaml.MappingNode, path: str) -> tuple[yaml.MappingNode, yaml.MappingNode | None, str]:
    """Return the section for a path, the node with its sources (or ``None``), and the key in the section."""
    section, rest = root, path
    while True:
        entries = {k.value: v for k, v in section.value}
        if rest in entries:
            return section, entries[rest], rest
        head, dot, tail = rest.partition(".")
        below = entries.get(head)
        if not dot or below is None or _is_number_with_sources(below):  # names of dtype rates contain a dot
            return section, None, rest
        rest = tail
        if isinstance(below, yaml.SequenceNode):
            name, _, rest = rest.partition(".")
            below = next(x for x in below.value if {k.value: v.value for k, v in x.value}.get("name") == name)
        section = below


def _has_separate_clocks(root: yaml.MappingNode) -> bool:
    clock = next(v for k, v in root.value if k.value == "clock_hz")
    return not _is_number_with_sources(clock)


def _is_number_with_sources(node: yaml.Node) -> bool:
    """Return whether a node contains the sources of a number rather than the fields of a section."""
    return isinstance(node, yaml.MappingNode) and any(k.value in SOURCES for k, _ in node.value)


def _append_entry(text: str, section: yaml.MappingNode, entry: str) -> str:
    """Return the text with an entry added after a section's last entry and its comment."""
    last = section.value[-1][1]
    end = last.end_mark.index
    if section.flow_style:
        return f"{text[:end]}, {entry}{text[end:]}"
    while text[end - 1].isspace():  # a block node extends to the next node
        end -= 1
    line = text.find("\n", end)
    line = len(text) if line < 0 else line
    return f"{text[:line]}\n{' ' * section.value[0][0].start_mark.column}{entry}{text[line:]}"


def _format_measured(value: float, integer: bool) -> str:
    """Return a number, with a measurement's digits, in a form that YAML 1.1 parses as a number.

    >>> (_format_measured(4.2134e11, False), _format_measured(31.98, False), _format_measured(64.0, True),
    ...  _format_measured(2e-9, False))
    ('4.213e+11', '31.98', '64', '2.0e-9')
    """
    if integer:
        return str(round(value))
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        short = f"{value:.5g}"
        return short if "e" not in short else f"{value:.1f}"
    return _format_scientific(f"{value:.3e}")


def _format_exact(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    text = repr(value)
    return _format_scientific(text) if "e" in text else text


def _format_scientific(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0")
        mantissa += "0" if mantissa.endswith(".") else ""
    else:
        mantissa += ".0"
    return f"{mantissa}e{int(exponent):+d}"


def spec_to_yaml(spec: DeviceSpec, name: str | None = None, notes: Mapping[str, str] | None = None) -> str:
    """Return a complete specification as YAML."""
    name = name or spec.name
    if canonical_device_name(name) == THIS_MACHINE:
        raise SpecError(f"device name '{name}': stands for the detected machine. Choose another name for the file.")
    said = dict(notes or {})

    def entry(path: str, value: float) -> str:
        source = spec.sources.get(path, "override")
        note = said.get(path) or ("detected: the operating system's own value" if source == "detected" else "")
        note = f", note: {_format_note('', note)}" if note else ""
        return f"{{{_SOURCES_OF.get(source, 'assumed')}: {_format_exact(value)}{note}}}"

    def section(title: str, values: Mapping[str, float], path: str, indent: str = "  ") -> list[str]:
        return [title, *(f"{indent}{k}: {entry(f'{path}.{k}', v)}" for k, v in values.items())]

    target = ", ".join(f"{k}: {v}" for k, v in spec.target_items)
    lines = [
        "# Values in SI base units; the effective one is measured, else datasheet, else assumed.",
        f"name: {name}", f"kind: {spec.kind}", f"description: {_format_note('', spec.description)}",
        *([f"machine: {_format_note('', spec.machine)}"] if spec.machine else []),
        f"target: {{{target}}}", f"units: {entry('units', spec.units)}",
        *_clock_lines(spec, entry), "",
        "teu:", f"  name: {spec.teu.name}", *section("", present_numbers(spec.teu), "teu")[1:], "",
        "compute:", *section("  ops_per_cycle_per_unit:", dict(spec.compute.rates), "compute.ops_per_cycle_per_unit",
                             "    "), "",
        *section("execution:", present_numbers(spec.execution), "execution"), "",
        *section("limits:", present_numbers(spec.limits), "limits"), "",
        *_fragment_lines(spec), "memory_layers:",
    ]  # fmt: skip
    for layer in spec.memory_layers:
        lines += [f"  - name: {layer.name}", f"    scope: {layer.scope}", f"    tiled: {str(layer.tiled).lower()}"]
        lines += section("", present_numbers(layer), f"memory_layers.{layer.name}", "    ")[1:]
    if accuracy := present_numbers(spec.accuracy):
        head, *errors = section("accuracy:", accuracy, "accuracy")
        # The errors stay valid when the text is read back; an edit of the values invalidates them.
        lines += ["", head, f"  {VALIDATED_WITH}: {_format_note('', spec.numbers_key)}", *errors]
    return "\n".join(lines) + "\n"


def _clock_lines(spec: DeviceSpec, entry: Callable[[str, float], str]) -> list[str]:
    """Return the lines for one or two clocks and for the board's values."""
    power = [] if spec.power_w is None else [f"power_w: {entry('power_w', spec.power_w)}"]
    of_process = ("", "_convolution", "_eager", "_least", "_most")
    for name in (*(f"process{part}_bytes" for part in of_process), "link_bytes_per_s", "link_latency_s"):
        if (value := getattr(spec, name)) is not None:
            power.append(f"{name}: {entry(name, value)}")
    boost, sustained = entry("clock_hz", spec.clock_hz), spec.sustained_clock_hz
    if sustained is None:
        return [f"clock_hz: {boost}", *power]
    return ["clock_hz:", f"  boost: {boost}", f"  sustained: {entry('sustained_clock_hz', sustained)}", *power]


def _fragment_lines(spec: DeviceSpec) -> list[str]:
    """Return the matrix instructions as YAML; no probe measures them."""
    if not spec.fragments:
        return []
    each = (", ".join(f"{k}: {v}" for k, v in f.to_dict().items()) for f in spec.fragments)
    return ["fragments:", *(f"  - {{{line}}}" for line in each), ""]


def check_and_write_spec(path: Path, text: str) -> None:
    """Check a specification's text and write it atomically."""
    parse_spec(text, str(path))
    try:
        with write_atomically(path, durable=True) as file:
            file.write(text.encode())
    except OSError as err:
        raise SpecError(f"{path}: cannot write the specification ({err.strerror}). Check the folder.") from err
