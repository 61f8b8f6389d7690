"""DeviceSpec: all values that construction and the performance model use for a device, in SI base units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from roller.core.matrix_instruction_fragment import Fragment
from roller.errors import SpecError, did_you_mean, shown
from roller.hardware.checks import Quantity
from roller.hardware.sections import (
    DTYPES,
    NOT_OF_KERNELS,
    OPERATION_CLASSES,
    OPTIONAL_CLASSES,
    RATE,
    Accuracy,
    Compute,
    Execution,
    Limits,
    MemoryLayer,
    Teu,
    numeric_field,
    numeric_fields,
    present_numbers,
)
from roller.hardware.sourced_numbers import SourcedNumber
from roller.targets import KINDS, DeviceKind
from roller_runtime.core.display import html_table, one_line_repr
from roller_runtime.core.validation import validate_integer

#: Note for a device whose errors were validated with other values.
OTHER_NUMBERS = "errors assumed: found with other numbers"


@dataclass(frozen=True)
class DeviceSpec:
    """A device described by its values; build one with :func:`roller.hardware.load_spec`.

    Parameters
    ----------
    name
        Name of the YAML file, or of the detected profile.
    kind
        One of :data:`roller.targets.KINDS`, which determines the fields present and :attr:`traits`.
    description
        One-line description for people.
    target_items
        Code generation target as pairs; read it through :attr:`target`.
    units
        Number of SMs, CUs or cores.
    clock_hz
        Clock to which rates refer: the boost clock, at which a single kernel runs.
    sustained_clock_hz
        Clock under continuous load; ``None`` if it equals ``clock_hz``.
    power_w
        Power limit of the board; ``None`` if it is unknown or no single kernel reaches it.
    process_bytes
        Memory of a process without its tensors: context, kernels and cuBLAS; ``None`` if unknown.
    process_convolution_bytes
        Additional memory for cuDNN in a process that computes convolutions; ``None`` if unknown.
    process_eager_bytes
        Size of a context that loads all kernels at start, as PyTorch did before 2.0; ``None`` if unknown.
    process_least_bytes, process_most_bytes
        Smallest published size of a context alone, and largest published size of a process with cuDNN; ``None`` if
        unknown.
    link_bytes_per_s
        One-directional bandwidth to another device in the machine; ``None`` if unknown.
    link_latency_s
        Time for one hop between two devices; ``None`` if unknown.
    teu, compute, execution, limits, memory_layers
        See the classes; layers are ordered from fastest to slowest.
    machine
        Fingerprint of the measured machine (:mod:`roller.hardware.probed_profile_location`); empty for any device with
        this name.
    accuracy
        Expected errors of the model on this device.
    fragments
        Instructions of the matrix unit, in no particular order; empty without a matrix unit.
    source_items
        ``(path, source)`` for each number; read it through :attr:`sources`.
    written
        Every number as its file states it, with all sources and notes.
    doubt
        Reason why the errors of predictions are assumed; empty if they were validated.
    base
        The device before any values were set by hand; ``None`` if none were.

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
    kind: str
    description: str
    target_items: tuple[tuple[str, str], ...]
    teu: Teu
    compute: Compute
    execution: Execution
    limits: Limits
    memory_layers: tuple[MemoryLayer, ...]
    units: int = numeric_field("units", 1, 1 << 16, integer=True)
    clock_hz: float = numeric_field("Hz", 1e7, 1e10)
    sustained_clock_hz: float | None = numeric_field("Hz", 1e7, 1e10, required=False)
    power_w: float | None = numeric_field("W", 1, 1e5, required=False)
    process_bytes: int | None = numeric_field("bytes", 0, 1 << 36, integer=True, required=False)
    process_convolution_bytes: int | None = numeric_field("bytes", 0, 1 << 36, integer=True, required=False)
    process_eager_bytes: int | None = numeric_field("bytes", 0, 1 << 36, integer=True, required=False)
    process_least_bytes: int | None = numeric_field("bytes", 0, 1 << 36, integer=True, required=False)
    process_most_bytes: int | None = numeric_field("bytes", 0, 1 << 36, integer=True, required=False)
    link_bytes_per_s: float | None = numeric_field("bytes/s", 1e6, 1e14, required=False)
    link_latency_s: float | None = numeric_field("s", 0, 1, required=False)
    machine: str = field(default="", compare=False)
    accuracy: Accuracy = field(default_factory=Accuracy)
    fragments: tuple[Fragment, ...] = ()
    source_items: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
    written: tuple[SourcedNumber, ...] = field(default=(), compare=False, repr=False)
    doubt: str = field(default="", compare=False, repr=False)
    base: DeviceSpec | None = field(default=None, compare=False, repr=False)

    def __repr__(self) -> str:
        return one_line_repr("DeviceSpec", f"{self.name}: {self.units} {self.traits.unit}", self.description)

    def _repr_html_(self) -> str:
        known = settable_fields(self)
        rows = ((k, f"{v:.6g}", known[k].unit, self.sources.get(k, "override")) for k, v in self.values().items())
        return html_table(f"{self.name}: {self.description}", ("field", "value", "unit", "source"), rows)

    def __hash__(self) -> int:
        return hash(self.content_key)

    @cached_property
    def target(self) -> dict[str, str]:
        """Code generation target: ``language`` and ``arch`` or ``mcpu``."""
        return dict(self.target_items)

    @property
    def traits(self) -> DeviceKind:
        """Properties common to all devices of this kind."""
        return KINDS[self.kind]

    @property
    def home(self) -> MemoryLayer:
        """Layer that stores tensors between kernels, and from which kernels load tiles."""
        return self.layer(self.traits.home)

    @cached_property
    def sources(self) -> dict[str, str]:
        """Source of each number: ``datasheet``, ``measured``, ``assumed``, ``detected`` or ``override``."""
        return dict(self.source_items)

    @property
    def modified(self) -> dict[str, float]:
        """Values set by hand, keyed by dotted path, except for prediction errors."""
        values = self.values()
        return {p: values[p] for p, s in self.source_items if s == "override" and not p.startswith("accuracy.")}

    @property
    def title(self) -> str:
        """Description for people, with the values set by hand and the reason for assumed errors.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100", {"units": 160}).title.partition("sm_70) ")[2]
        '(modified: units=160) (errors assumed: found with other numbers)'
        """
        said = ", ".join(f"{path}={value:.6g}" for path, value in self.modified.items())
        doubt = "" if self.sources.get("accuracy.prediction_error") == "override" else self.doubt
        return " ".join((self.description, *(f"({x})" for x in (said and f"modified: {said}", doubt) if x)))

    @cached_property
    def _layers(self) -> dict[str, MemoryLayer]:
        return {x.name: x for x in self.memory_layers}

    def layer(self, name: str) -> MemoryLayer:
        """Return a memory layer by name.

        Raises
        ------
        SpecError
            If the device has no such layer.
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
            Instruction class in :class:`Compute`.
        dtype
            The rate of ``operation.dtype`` takes precedence over the rate of the class.

        Returns
        -------
        float
            Operations of single threads or lanes per second, over the whole device.

        Raises
        ------
        SpecError
            If the device has no rate for the class.
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
        """Return a copy with some values replaced.

        With the source ``"override"``, a value that is set back to that in :attr:`base` no longer counts as set by
        hand; the prediction errors are valid again once every value has been set back.

        Parameters
        ----------
        overrides
            Value by dotted path, for example ``{"memory_layers.global.bandwidth_bytes_per_s": 8.0e11}``.
        source
            Entry for the new values in :attr:`sources`.

        Raises
        ------
        SpecError
            If a path does not exist, or a value has the wrong type or is out of range.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100").with_overrides({"units": 40}).units
        40
        """
        from roller.hardware.overrides import apply_overrides

        return apply_overrides(self, overrides, source, settable_fields(self))

    def share(self, units: int) -> DeviceSpec:
        """Return the device as it appears to a program that uses at most ``units`` of its units.

        Per-unit resources scale with the number of units. A device-wide layer keeps its bandwidth; on a CPU, the
        bandwidth is limited to what the units can draw if the layer's ``bandwidth_per_teu_bytes_per_s`` is known.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> load_spec("v100").share(20).layer("shared").bandwidth_bytes_per_s * 4
        12080000000000.0
        """
        given = min(validate_integer(units, "units", 1), self.units)
        part, layers = given / self.units, []
        for layer in self.memory_layers:
            alone = layer.bandwidth_per_teu_bytes_per_s if self.traits.simd else None  # the unit is one TEU
            scale = part if layer.scope != "device" else 1.0
            if layer.scope == "device" and alone:
                scale = min(1.0, given * alone / layer.bandwidth_bytes_per_s)
            layers.append(layer.with_bandwidth_factor(scale))
        return replace(self, units=given, memory_layers=tuple(layers))

    @cached_property
    def emitted(self) -> DeviceSpec:
        """The device with only the matrix instructions for which kernels are generated."""
        kept = tuple(f for f in self.fragments if f.emitted)
        return self if kept == self.fragments else replace(self, fragments=kept)

    @cached_property
    def constructed(self) -> DeviceSpec:
        """The device with only the matrix instructions for which programs are constructed."""
        kept = tuple(f for f in self.fragments if f.is_constructed)
        return self if kept == self.fragments else replace(self, fragments=kept)

    @cached_property
    def sustained(self) -> DeviceSpec:
        """The device at its sustained clock, as for a whole model; the same object if that equals the boost clock.

        Times that are given in cycles grow: those of steps, barriers and the scratchpad. Device memory has its own
        clock.

        Examples
        --------
        >>> from roller.hardware import load_spec
        >>> spec = load_spec("h200")
        >>> f"{spec.clock_hz / 1e9:.2f}, {spec.sustained.clock_hz / 1e9:.2f} GHz", spec.sustained.sustained_clock_hz
        ('1.98, 1.83 GHz', None)
        """
        if self.sustained_clock_hz is None or self.sustained_clock_hz >= self.clock_hz:
            return self
        slower, ex = self.sustained_clock_hz / self.clock_hz, self.execution
        cycles = {k: getattr(ex, k) / slower for k in ("step_latency_s", "step_issue_s", "barrier_s")}
        layers = tuple(x if x.scope == "device" else x.with_clock_factor(slower) for x in self.memory_layers)
        return replace(self, clock_hz=self.sustained_clock_hz, sustained_clock_hz=None, memory_layers=layers,
                       execution=replace(ex, **cycles))  # fmt: skip

    def values(self) -> dict[str, float]:
        """Return every value present, keyed by dotted path, in the order of the YAML file."""
        out: dict[str, float] = present_numbers(self)
        for section in ("teu", "execution", "limits"):
            out |= {f"{section}.{k}": v for k, v in present_numbers(getattr(self, section)).items()}
        out |= {f"compute.ops_per_cycle_per_unit.{k}": v for k, v in self.compute.rates}
        for layer in self.memory_layers:
            out |= {f"memory_layers.{layer.name}.{k}": v for k, v in present_numbers(layer).items()}
        out |= {f"accuracy.{k}": v for k, v in present_numbers(self.accuracy).items()}
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data with the source of each number."""
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
        """SHA-256 of everything that affects the performance model and code generation, without sources and prose."""
        return _sha256_of_json({"name": self.name, **self._content()})

    @property
    def numbers_key(self) -> str:
        """Short :attr:`content_key` without the name and the errors; measured errors are valid for this key."""
        body = self._content()
        body["values"] = {k: v for k, v in body["values"].items() if not k.startswith("accuracy.")}
        return _sha256_of_json(body)[:16]

    def _content(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "target": self.target_items,
            "teu": self.teu.name,
            "fragments": [f.to_dict() for f in self.fragments],
            "layers": [(x.name, x.scope, x.tiled) for x in self.memory_layers],
            "values": {k: float(v) for k, v in self.values().items() if k not in NOT_OF_KERNELS},
        }

    def with_unvalidated_accuracy(self) -> DeviceSpec:
        """Return the device with the prediction errors for unvalidated values."""
        accuracy = self.accuracy.for_unvalidated_numbers()
        if accuracy == self.accuracy:
            return self
        kept = {f"accuracy.{k}" for k, v in present_numbers(accuracy).items() if v == getattr(self.accuracy, k)}
        sources = {k: v for k, v in self.sources.items() if not k.startswith("accuracy.") or k in kept}
        sources |= {f"accuracy.{k}": "assumed" for k in present_numbers(accuracy) if f"accuracy.{k}" not in kept}
        return replace(self, accuracy=accuracy, source_items=tuple(sources.items()), doubt=OTHER_NUMBERS)


def _sha256_of_json(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


_SECTIONS: dict[str, type] = {"teu": Teu, "execution": Execution, "limits": Limits, "accuracy": Accuracy}


def settable_fields(spec: DeviceSpec) -> dict[str, Quantity]:
    """Return the unit and range of each numeric path of a device, present or not."""
    out = dict(numeric_fields(DeviceSpec))
    for name, section in _SECTIONS.items():
        out |= {
            f"{name}.{k}": q
            for k, q in numeric_fields(section).items()
            if section is not Limits or spec.kind in q.kinds
        }
    prefix = "compute.ops_per_cycle_per_unit"
    names = {*OPERATION_CLASSES, *OPTIONAL_CLASSES, *spec.compute.ops_per_cycle_per_unit}
    names |= {f"{c}.{d}" for c in ("fma", "add", "matrix", "group_matrix", "convert", "convert_to") for d in DTYPES}
    out |= {f"{prefix}.{name}": RATE for name in sorted(names)}
    for layer in spec.traits.layers:
        out |= {f"memory_layers.{layer}.{k}": q for k, q in numeric_fields(MemoryLayer).items()}
    return out
