"""DeviceSpec: everything construction and the performance model know of a device.

One frozen tree of numbers in SI base units. The same class describes GPUs and CPUs; nothing above this
floor asks which device it is, only what its numbers are.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from roller.display import html_table, one_line
from roller.errors import SpecError, did_you_mean, shown
from roller.fragment import Fragment
from roller.hardware.architectures import has_async_copies
from roller.hardware.checks import Quantity, check_number, fail, join_path
from roller.hardware.sections import (
    DTYPES,
    LAYER_NAMES,
    OPERATION_CLASSES,
    OPTIONAL_CLASSES,
    RATE,
    Accuracy,
    Compute,
    Execution,
    Limits,
    MemoryLayer,
    Teu,
    number,
    numbers_of,
    quantities,
)
from roller.validation import whole_number


@dataclass(frozen=True)
class DeviceSpec:
    """A device as numbers; build one with :func:`roller.hardware.load_spec`.

    Parameters
    ----------
    name
        Name of the YAML file, or of the detected profile.
    kind
        ``"gpu"`` or ``"cpu"``: which fields are present, never which device it is.
    description
        One line for people.
    target_items
        What code generation needs, as pairs; read it through :attr:`target`.
    units
        SMs, CUs or cores.
    clock_hz
        Clock the rates are quoted at.
    teu, compute, execution, limits, memory_layers
        See the classes; layers from fastest to slowest.
    machine
        Fingerprint of the machine the numbers were measured on, see :mod:`roller.hardware.machine`; empty where the
        specification describes any device of its name.
    accuracy
        Expected errors of the model on this device.
    fragments
        Instructions of its matrix unit, in no particular order; empty where it has none.
    source_items
        ``(path, source)`` of every number; read it through :attr:`sources`.

    Examples
    --------
    >>> from roller.hardware import load_spec
    >>> spec = load_spec("v100")
    >>> spec.units, spec.teu.lanes, spec.layer("shared").banks
    (80, 32, 32)
    >>> f"{2 * spec.ops_per_s('fma') / 1e12:.2f} TFLOP/s"
    '14.13 TFLOP/s'
    """

    name: str
    kind: Literal["gpu", "cpu"]
    description: str
    target_items: tuple[tuple[str, str], ...]
    teu: Teu
    compute: Compute
    execution: Execution
    limits: Limits
    memory_layers: tuple[MemoryLayer, ...]
    units: int = number("units", 1, 1 << 16, integer=True)
    clock_hz: float = number("Hz", 1e7, 1e11)
    machine: str = field(default="", compare=False)
    accuracy: Accuracy = field(default_factory=Accuracy)
    fragments: tuple[Fragment, ...] = ()
    source_items: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        """Name and size on one line; :meth:`values` has every number."""
        what = "cores" if self.kind == "cpu" else "units"
        return one_line("DeviceSpec", f"{self.name}: {self.units} {what}", self.description)

    def _repr_html_(self) -> str:
        """Every number with its unit and source, for a notebook."""
        known = settable(self)
        rows = ((k, f"{v:.6g}", known[k].unit, self.sources.get(k, "override")) for k, v in self.values().items())
        return html_table(f"{self.name}: {self.description}", ("field", "value", "unit", "source"), rows)

    def __hash__(self) -> int:
        """Hash by content; cached, because specs key the caches of construction."""
        return hash(self.content_key)

    @cached_property
    def target(self) -> dict[str, str]:
        """What code generation needs: ``language`` and ``arch`` or ``mcpu``."""
        return dict(self.target_items)

    @cached_property
    def sources(self) -> dict[str, str]:
        """Where each number comes from: ``datasheet``, ``measured``, ``assumed``, ``detected`` or ``override``."""
        return dict(self.source_items)

    @cached_property
    def tiled_layers(self) -> tuple[MemoryLayer, ...]:
        """Layers in which an rTile lives, fastest first."""
        return tuple(x for x in self.memory_layers if x.tiled)

    @cached_property
    def _layers(self) -> dict[str, MemoryLayer]:
        return {x.name: x for x in self.memory_layers}

    def layer(self, name: str) -> MemoryLayer:
        """Return a memory layer by name.

        Raises
        ------
        SpecError
            Where the device has no such layer.
        """
        found = self._layers.get(name) if isinstance(name, str) else None
        if found is None:
            known = tuple(self._layers)
            hint = did_you_mean(name, known) or "."
            raise SpecError(f"{self.name}: no memory layer {shown(name)}{hint} It has {list(known)}.")
        return found

    def ops_per_s(self, operation: str, dtype: str = "float32") -> float:
        """Return the device-wide rate of an instruction class.

        Parameters
        ----------
        operation
            Class of :class:`Compute`.
        dtype
            A rate given for ``operation.dtype`` wins over the one of the class.

        Returns
        -------
        float
            Operations of single threads or lanes per second, over the whole device.

        Raises
        ------
        SpecError
            Where the device gives no rate for the class.
        """
        rates = self.compute.ops_per_cycle_per_unit
        named = isinstance(operation, str) and isinstance(dtype, str)
        rate = rates.get(f"{operation}.{dtype}", rates.get(operation)) if named else None
        if rate is None:
            hint = did_you_mean(operation, rates)
            what = f"{shown(operation)} on {shown(dtype).strip(chr(39))}"
            raise SpecError(f"{self.name}: no rate for {what}{hint or '.'} It has {sorted(rates)}.")
        return rate * self.units * self.clock_hz

    def with_overrides(self, overrides: Mapping[str, float], source: str = "override") -> DeviceSpec:
        """Return a copy with some numbers replaced.

        Parameters
        ----------
        overrides
            Value by dotted path, e.g. ``{"memory_layers.global.bandwidth_bytes_per_s": 8.0e11}``.
        source
            What :attr:`sources` says of the new numbers.

        Raises
        ------
        SpecError
            Where a path does not exist, or a value is of the wrong type or out of range.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100").with_overrides({"units": 40}).units
        40
        """
        return _override(self, overrides, source)

    def share(self, units: int) -> DeviceSpec:
        """Return the device as a program sees it that is given only ``units`` of it, or all it has.

        What every unit has for itself shrinks with their number; a layer of the whole device gives them all they can
        draw, which is known where ``bandwidth_per_teu_bytes_per_s`` of a core is.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100").share(20).layer("shared").bandwidth_bytes_per_s * 4
        12080000000000.0
        """
        given = min(whole_number(units, "units", 1), self.units)
        part, layers = given / self.units, []
        for layer in self.memory_layers:
            alone = layer.bandwidth_per_teu_bytes_per_s if self.kind == "cpu" else None
            scale = part if layer.scope != "device" else 1.0
            if layer.scope == "device" and alone:
                scale = min(1.0, given * alone / layer.bandwidth_bytes_per_s)
            layers.append(replace(layer, bandwidth_bytes_per_s=layer.bandwidth_bytes_per_s * scale))
        return replace(self, units=given, memory_layers=tuple(layers))

    def values(self) -> dict[str, float]:
        """Return every number that is present, by dotted path, in the order of the YAML."""
        out: dict[str, float] = {"units": self.units, "clock_hz": self.clock_hz}
        for section in ("teu", "execution", "limits"):
            out |= {f"{section}.{k}": v for k, v in numbers_of(getattr(self, section)).items()}
        out |= {f"compute.ops_per_cycle_per_unit.{k}": v for k, v in self.compute.rates}
        for layer in self.memory_layers:
            out |= {f"memory_layers.{layer.name}.{k}": v for k, v in numbers_of(layer).items()}
        out |= {f"accuracy.{k}": v for k, v in numbers_of(self.accuracy).items()}
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with the source of every number."""
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "target": self.target,
            "teu": self.teu.name,
            "fragments": [f.to_dict() for f in self.fragments],
            "memory_layers": [{"name": x.name, "scope": x.scope, "tiled": x.tiled} for x in self.memory_layers],
            "values": {k: {"value": v, "source": self.sources.get(k, "override")} for k, v in self.values().items()},
            "content_key": self.content_key,
        }

    @cached_property
    def content_key(self) -> str:
        """SHA-256 over what the model and code generation see; sources and prose do not count."""
        body = {
            "name": self.name,
            "kind": self.kind,
            "target": self.target_items,
            "teu": self.teu.name,
            "fragments": [f.to_dict() for f in self.fragments],
            "layers": [(x.name, x.scope, x.tiled) for x in self.memory_layers],
            "values": {k: float(v) for k, v in self.values().items()},
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_consistency(where: str, spec: DeviceSpec) -> None:
    """Refuse numbers that contradict each other.

    Raises
    ------
    SpecError
        Where a usable budget exceeds its hard limit, only one of a pair is given, or the target lacks what is priced.
    """
    limits, arch = spec.limits, spec.target.get("arch", "")
    if spec.execution.async_copy_bytes is not None and not has_async_copies(arch):
        raise fail(
            where,
            "execution.async_copy_bytes",
            f"expected a target with asynchronous copies (sm_80 or later), got '{arch or spec.kind}'. Leave it out.",
        )
    pairs: list[tuple[str, float | None, str, float | None]] = [
        ("limits.usable_registers_per_thread", limits.usable_registers_per_thread,
         "limits.registers_per_thread", limits.registers_per_thread),
        ("limits.usable_vector_registers", limits.usable_vector_registers,
         "limits.vector_registers", limits.vector_registers),
        ("limits.threads_per_block", limits.threads_per_block, "limits.threads_per_unit", limits.threads_per_unit),
    ]  # fmt: skip
    for layer in spec.memory_layers:
        path = f"memory_layers.{layer.name}"
        pairs.append((f"{path}.usable_bytes", layer.usable_bytes, f"{path}.capacity_bytes", layer.capacity_bytes))
        if (layer.banks is None) != (layer.bank_width_bytes is None):
            raise fail(where, f"{path}.banks", "expected banks and bank_width_bytes together. Add the other one.")
        if (layer.bandwidth_per_teu_bytes_per_s is None) != (layer.saturation_exponent is None):
            problem = "expected bandwidth_per_teu_bytes_per_s and saturation_exponent together. Add the other one."
            raise fail(where, f"{path}.saturation_exponent", problem)
    for path, value, bound_path, bound in pairs:
        if value is not None and bound is not None and value > bound:
            raise fail(where, path, f"expected at most {bound_path} = {bound}, got {value}. Lower it.")


def _override(spec: DeviceSpec, overrides: Mapping[str, float], source: str) -> DeviceSpec:
    """Return a copy of a spec with numbers replaced by dotted path; see ``DeviceSpec.with_overrides``.

    Raises
    ------
    SpecError
        Where a path does not exist for this kind of device, or a value is wrong.
    """
    where = spec.name
    if not isinstance(overrides, Mapping):
        raise SpecError(f"{where}: overrides: expected a mapping from paths to numbers, got {shown(overrides)}.")
    if not overrides:
        return spec
    known = settable(spec)
    for path, value in overrides.items():
        if not isinstance(path, str):
            raise SpecError(f"{where}: overrides: expected dotted paths such as 'units', got {shown(path)}.")
        if path not in known:
            raise fail(where, path, f"unknown field{_nearest_fields(path, known)}")
        number = check_number(where, path, value, known[path])
        head, _, rest = path.partition(".")
        if head == "memory_layers":
            name, _, key = rest.partition(".")
            layers = tuple(_replaced(x, key, number) if x.name == name else x for x in spec.memory_layers)
            spec = replace(spec, memory_layers=layers)
        elif head == "compute":
            rates = spec.compute.ops_per_cycle_per_unit | {rest.partition(".")[2]: number}
            spec = replace(spec, compute=Compute(tuple(rates.items())))
        elif rest:
            spec = _replaced(spec, head, _replaced(getattr(spec, head), rest, number))
        else:
            spec = _replaced(spec, head, number)
    check_consistency(where, spec)
    return replace(spec, source_items=tuple((spec.sources | dict.fromkeys(overrides, source)).items()))


def _nearest_fields(path: str, known: Mapping[str, Quantity]) -> str:
    """Return what to write instead of an unknown path: the closest one, else the fields of its section."""
    section, _, last = path.rpartition(".")
    while section and not any(name.startswith(f"{section}.") for name in known):
        section, _, last = section.rpartition(".")
    under = [name.removeprefix(f"{section}.") for name in known if not section or name.startswith(f"{section}.")]
    part, _, field = path.removeprefix(f"{section}.").partition(".")
    for head in difflib.get_close_matches(part, sorted({n.partition(".")[0] for n in under}), n=1, cutoff=0.6):
        if field and head != part:  # a layer's name that is misspelt comes before its field
            hint = join_path(section, head)
            full = f"{hint}.{field}"
            nested = _nearest_fields(full, known)
            return nested if "did you mean" in nested else f"; did you mean '{full if full in known else hint}'?"
    ends: dict[str, str] = {}
    for name in under:  # of several layers that have the field, the first is shown
        ends.setdefault(name.rpartition(".")[2], name)
        ends.setdefault(name, name)
    for near in difflib.get_close_matches(last, list(ends), n=1, cutoff=0.5):
        return f"; did you mean '{join_path(section, ends[near])}'?"
    fields = sorted({name.partition(".")[0] for name in under})
    if section:
        return f"; {section} has {fields}."
    return f"; expected one of {fields} or a path under it. `roller devices --show DEVICE` lists all."


def _replaced(obj: Any, name: str, value: object) -> Any:
    return replace(obj, **{name: value})


_SECTIONS: dict[str, type] = {"teu": Teu, "execution": Execution, "limits": Limits, "accuracy": Accuracy}


def settable(spec: DeviceSpec) -> dict[str, Quantity]:
    """Return every numeric path of a device, given or not, with its unit and range."""
    out = dict(quantities(DeviceSpec))
    for name, section in _SECTIONS.items():
        out |= {
            f"{name}.{k}": q for k, q in quantities(section).items() if section is not Limits or spec.kind in q.kinds
        }
    prefix = "compute.ops_per_cycle_per_unit"
    names = {*OPERATION_CLASSES, *OPTIONAL_CLASSES, *spec.compute.ops_per_cycle_per_unit}
    names |= {f"{c}.{d}" for c in ("fma", "add", "matrix", "group_matrix") for d in DTYPES}
    out |= {f"{prefix}.{name}": RATE for name in sorted(names)}
    for layer in LAYER_NAMES[spec.kind]:
        out |= {f"memory_layers.{layer}.{k}": q for k, q in quantities(MemoryLayer).items()}
    return out
