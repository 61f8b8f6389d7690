"""Writes ``docs/device-contract.md``: what the model reads of a device, its unit, its probe, and what holds without it.

``python docs/device_contract.py`` writes it; ``tests/test_device_contract.py`` holds it up to date. Fields, units and
kinds come from the schema, probes from the registry, and what the model reads from recording it at work.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import roller
from roller.compiler.autotune.refine import untried_neighbours
from roller.construction.worth_timing import positions_of_candidates_to_time
from roller.hardware import Compute, DeviceSpec, load_spec
from roller.hardware.checks import Quantity
from roller.hardware.sections import NOT_OF_KERNELS, OPERATION_CLASSES, numeric_fields
from roller.hardware.spec import settable_fields
from roller.perf.expected_errors import UNVALIDATED
from roller.probing import microbench_folder, probes, read_probe_header

PATH = Path(__file__).with_name("device-contract.md")
#: Specifications that stand for their kind; both have every field the model may read.
SPECS = {"gpu": "v100", "cpu": "cpu-avx512"}
#: Others, which give less: what is read in place of a field that is not there shows only there.
MORE = {"gpu": ("h200", "t4", "mi50"), "cpu": ("cpu-neon",)}
_RATES = "compute.ops_per_cycle_per_unit"
_SECTIONS = ("teu", "execution", "limits", "accuracy")

#: Default of each optional field, by its name; the test prices operators without each of them.
UNKNOWN = {
    "overlap_blocks": "blocks never run in lockstep: all resident groups hide each other's phases",
    "datapath_lanes": "`lanes`: a vector of any length takes one pass",
    "split_load_slots": "1: a load that crosses a line takes one more slot",
    "prefetched_lines": "all lines of a stream are fetched ahead",
    "kept_share": "1: the whole cache",
    "fetch_bytes": "the transaction size of the layer",
    "page_bytes": "TLB misses and conflicts in cache sets are not priced",
    "tlb_entries": "TLB misses are not priced",
    "tlb_miss_s": "TLB misses cost nothing",
    "usable_bytes": "the whole capacity",
    "banks": "as many banks as a TEU has lanes",
    "reserved_bytes": "0: blocks can use the whole scratchpad",
    "bank_width_bytes": "4 bytes",
    "line_bytes": "the transaction size of the layer",
    "latency_s": "0: chains of dependent accesses cost nothing",
    "bandwidth_per_teu_bytes_per_s": "an equal share of the total (GPU: the total for any number of resident TEUs)",
    "saturation_exponent": "none: give both this and bandwidth_per_teu_bytes_per_s, or neither",
    "async_copy_bytes": "copies into the scratchpad pass through registers, at most one step ahead",
    "convert_to": "narrowing takes as long as widening",
    "process_bytes": "forecasts of memory exclude it",
    "process_convolution_bytes": "0",
    "process_eager_bytes": "`process_bytes`",
    "process_least_bytes": "half of `process_bytes`",
    "process_most_bytes": "one and a half times `process_bytes`",
    "reported_bytes": "`capacity_bytes`, of which up to 9 % are reported as doubtful",
    "reported_most_bytes": "`reported_bytes`",
    "fault_s": "forecasts of steps on a CPU price new pages like touched ones",
    "link_bytes_per_s": "no forecasts of several devices",
    "link_latency_s": "0",
    "power_w": "no power limit: kernels run at the boost clock",
    "busy_cycle_j": "no power limit",
    "matrix_cycle_j": "busy_cycle_j",
    "idle_cycle_j": "0: cycles without arithmetic draw nothing",
    "byte_j": "0: the energies of cycles include the energy of memory traffic",
    "standing_w": "the energies of cycles include the board's standing power",
    "read_bandwidth_bytes_per_s": "all traffic has the bandwidth of copies (needs triad_bandwidth_bytes_per_s, too)",
    "triad_bandwidth_bytes_per_s": "all traffic has the bandwidth of copies (needs read_bandwidth_bytes_per_s, too)",
    "matrix": "no matrix units",
    "group_matrix": "no warp-group instructions",
    "integer": "integer instructions share the pipe of multiply-adds",
    "prediction_error": f"{UNVALIDATED['prediction_error']:g}",
    "compute_error": "prediction_error",
    "memory_error": "prediction_error",
    "overhead_error": "prediction_error",
    "matrix_error": f"{UNVALIDATED['matrix_error']:g}",
    "mechanism_error": f"{UNVALIDATED['mechanism_error']:g}",
    "ranking_error": f"{UNVALIDATED['ranking_error']:g}",
    "same_kernel_error": f"{UNVALIDATED['same_kernel_error']:g}",
}


class _RecordingRates(dict[str, float]):
    """Rates by class that note which were asked for."""

    def __init__(self, rates: dict[str, float], seen: set[str]) -> None:
        super().__init__(rates)
        self.seen = seen

    def _note(self, name: object) -> None:
        self.seen.add(f"{_RATES}.{name}")

    def __getitem__(self, name: str) -> float:
        self._note(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Note and look up."""
        self._note(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(name)
        return super().__contains__(name)


def _recording(section: Any, prefix: str, seen: set[str]) -> Any:
    """Return a copy of a section that notes which of its numbers are read."""
    names = set(numeric_fields(type(section)))

    def read(self: Any, name: str) -> Any:
        # A copy with other numbers reads all of them and uses none.
        if name in names and sys._getframe(1).f_globals.get("__name__") != "dataclasses":
            seen.add(f"{prefix}{name}")
        return object.__getattribute__(self, name)

    made = object.__new__(type(type(section).__name__, (type(section),), {"__getattribute__": read}))
    made.__dict__.update(section.__dict__)
    return made


def recorded(spec: DeviceSpec, seen: set[str]) -> DeviceSpec:
    """Return a specification that notes in ``seen`` the path of every number that is read."""
    inner = copy.copy(spec)
    _ = inner.content_key  # reads everything, once, before anybody listens
    compute = Compute(spec.compute.rates)
    compute.__dict__["ops_per_cycle_per_unit"] = _RecordingRates(dict(spec.compute.rates), seen)
    layers = tuple(_recording(x, f"memory_layers.{x.name}.", seen) for x in spec.memory_layers)
    inner.__dict__.update({name: _recording(getattr(spec, name), f"{name}.", seen) for name in _SECTIONS})
    inner.__dict__.update(compute=compute, memory_layers=layers)
    inner.__dict__.pop("_layers", None)
    found: DeviceSpec = _recording(inner, "", seen)
    return found


def workload(kind: str) -> Iterator[tuple[Any, dict[str, Any] | None]]:
    """Return operators of all classes, and tiles a person names (also unaligned ones), for a kind of device."""
    ops = roller.ops
    tiles = {"gpu": {"shared": {"i": 60, "j": 60, "k": 10}, "register": {"i": 4, "j": 4}},
             "cpu": {"register": {"i": 4, "j": 16}, "l1": {"i": 4, "j": 16, "k": 64}}}[kind]  # fmt: skip
    yield ops.matmul(256, 250, 130), tiles
    yield ops.matmul(512, 512, 512), None
    for dtype in ("float16", "bfloat16", "int8"):
        yield ops.matmul(64, 64, 64, dtype=dtype), None
    yield ops.matmul(128, 96, 64, dtype="float64"), None
    yield ops.elementwise("add", (64, 1024), dtype="float64"), None
    yield ops.softmax((64, 100), dtype="float64"), None
    yield ops.matmul(1, 1024, 4096), None
    for text in (
        "conv2d(n=8, c=32, h=28, w=28, f=64, kh=3, kw=3, stride=1, padding=1)",
        "conv2d(n=4, c=16, h=30, w=30, f=32, kh=3, kw=3, stride=2, padding=1)",
        "depthwise_conv2d(n=8, c=32, h=28, w=28, kh=3, kw=3, stride=2, padding=1)",
        "elementwise('add', (1024, 4096))", "elementwise('exp', (64, 64))", "reduce('sum', (512, 2048), (1,))",
        "softmax((128, 1000))", "pool2d('max', n=8, c=32, h=28, w=28, kh=3, kw=3, stride=2)",
    ):  # fmt: skip
        yield ops.parse(text), None


def read_by_the_model(kind: str, spec: DeviceSpec | None = None) -> set[str]:
    """Price the workload, choose what is worth timing, and return the paths of all numbers that were read."""
    seen: set[str] = set()
    base = spec or load_spec(SPECS[kind])
    watched = recorded(base.with_overrides({"clock_hz": base.clock_hz * 1.001}), seen)  # no cache knows it
    for expr, tiles in workload(kind):
        found = roller.construct(expr, watched, top_k=3)
        for candidate in found:
            candidate.estimate.to_dict()
        positions_of_candidates_to_time(found, watched)  # top_k="auto"
        if tiles is not None:
            roller.predict(expr, watched, tiles=tiles)
            # What refining tries, which needs no machine; the rest of it measures.
            untried_neighbours(
                SimpleNamespace(expression=expr, spec=watched, options=roller.ConstructOptions()), found[0], set()
            )  # type: ignore[arg-type]
    known = settable_fields(base)
    return {p for p in seen if p in known}


def _unknown(path: str, quantity: Quantity, kind: str) -> str:
    name = path.rpartition(".")[2]
    if path.startswith(_RATES):
        name, _, dtype = path.removeprefix(f"{_RATES}.").partition(".")
        if dtype:
            return UNKNOWN.get(name, "the rate of its class")
        if name not in OPERATION_CLASSES:
            return UNKNOWN[name]
    elif kind not in quantity.kinds:
        return UNKNOWN[name]
    return "required" + ("; detection assumes a value" if kind == "cpu" else ": a file without it is refused")


def _table(kind: str, read: set[str], by_field: dict[str, list[str]]) -> list[str]:
    known = settable_fields(load_spec(SPECS[kind]))
    lines = ["| field | unit | probe | default |", "|---|---|---|---|"]
    for path, quantity in known.items():
        if path in read:
            names = ", ".join(f"`{n}`" for n in by_field.get(path, [])) or "none"
            lines.append(f"| `{path}` | {quantity.unit or '1'} | {names} | {_unknown(path, quantity, kind)} |")
    return lines


def contract() -> str:
    """Return the whole document."""
    lines = [
        "# Device contract: fields of a specification", "",
        "`python docs/device_contract.py` generates this page from the schema (`roller/hardware/sections.py`), the",
        "registry of probes, and a recording of the fields that the model reads. It is the checklist for a new device:",
        "measure or state each field, in SI base units, in a YAML file like those in `hardware_specs/`.", "",
    ]  # fmt: skip
    for kind, title in (("gpu", "GPU"), ("cpu", "CPU")):
        by_field: dict[str, list[str]] = {}
        for probe in probes(kind):  # type: ignore[arg-type]
            for field in probe.fields:
                by_field.setdefault(field, []).append(probe.name)
        read = set().union(*(read_by_the_model(kind, load_spec(name)) for name in (SPECS[kind], *MORE[kind])))
        lines += [f"## {title}: fields that the model reads", "", *_table(kind, read, by_field), ""]
        if kind == "cpu":
            lines += [
                "Co-scheduling of a model also reads `kept_share` of the caches (default 1), and forecasts of",
                "steps read `execution.fault_s`.",
                "",
            ]
        else:
            lines += [
                "Whole models are priced at `sustained_clock_hz` (default `clock_hz`), and single kernels are",
                "priced at the lower of `clock_hz` and the clock that `power_w` permits. Forecasts of memory read",
                "`process_bytes`,",
                "`process_convolution_bytes`, `process_eager_bytes`, `process_least_bytes`,",
                "`process_most_bytes`, and",
                "`reported_bytes` and `reported_most_bytes` of the memory;",
                "forecasts of several devices read `link_bytes_per_s` and `link_latency_s`.", "",
            ]  # fmt: skip
        unread = [p for p in settable_fields(load_spec(SPECS[kind])) if p not in read and p not in NOT_OF_KERNELS]
        rest = [p for p in unread if p in by_field]
        if rest:
            lines += ["Measured but not read: " + ", ".join(f"`{p}`" for p in rest) + ".", ""]
        lines += [f"### Probes of a {title}", "", "| probe | source | measures |", "|---|---|---|"]
        for probe in probes(kind):  # type: ignore[arg-type]
            said = read_probe_header(microbench_folder() / probe.source)
            lines.append(f"| `{probe.name}` | `microbench/{probe.source}` | {said.measures.replace('|', '/')} |")
        lines.append("")
    return "\n".join(lines)


def without(spec: DeviceSpec, path: str) -> DeviceSpec:
    """Return a specification that lacks an optional number, and its partner where there is one."""
    head, _, name = path.rpartition(".")
    partner = {"banks": "bank_width_bytes", "bank_width_bytes": "banks",
               "bandwidth_per_teu_bytes_per_s": "saturation_exponent",
               "read_bandwidth_bytes_per_s": "triad_bandwidth_bytes_per_s",
               "triad_bandwidth_bytes_per_s": "read_bandwidth_bytes_per_s",
               "saturation_exponent": "bandwidth_per_teu_bytes_per_s"}.get(name)  # fmt: skip
    gone = dict.fromkeys((name, partner) if partner else (name,))
    if path.startswith(_RATES):
        rate = path.removeprefix(f"{_RATES}.")
        return replace(spec, compute=Compute(tuple((k, v) for k, v in spec.compute.rates if k != rate)))
    if head.startswith("memory_layers."):
        layer = head.partition(".")[2]
        layers = tuple(replace(x, **gone) if x.name == layer else x for x in spec.memory_layers)
        return replace(spec, memory_layers=layers)
    return replace(spec, **({head: replace(getattr(spec, head), **gone)} if head else gone))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLLER_PROFILE_DIR"] = folder  # what this machine measured is nobody else's contract
        PATH.write_text(contract(), encoding="utf-8")
