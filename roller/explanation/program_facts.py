"""Facts about a program: bytes held and moved per memory layer, occupancy and padding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from roller import perf
from roller.hardware import DeviceSpec
from roller.perf import Estimate
from roller.targets import KINDS
from roller.templates.gpu import SharedMemoryLayout, blocks_per_unit_by_resource
from roller.tile.program import RProgram
from roller.tile.winograd_batched_product import tiled_product_of_program


@dataclass(frozen=True)
class LayerUse:
    """Use of one memory layer by a program."""

    name: str
    tile: dict[str, int] | None  #: Extents by axis, or ``None`` if the layer has no tile of its own
    #: Amount used per thread (32-bit registers, or vectors on a CPU), block or core, and its maximum; ``None`` if not
    #: modelled.
    held: float | None = None
    capacity: float | None = None
    unit: str = ""  #: Unit of both
    #: Number of bytes that the whole launch moves through the layer, its bandwidth, and the modelled time.
    moved_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dict(vars(self))


@dataclass(frozen=True)
class ProgramFact:
    """One value that describes how a program fills the device, with its limit and meaning."""

    name: str
    value: float
    limit: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return dict(vars(self))


def layer_uses(program: RProgram, spec: DeviceSpec, estimate: Estimate) -> tuple[LayerUse, ...]:
    """Return the memory layers, fastest first, with their terms of the estimate."""
    terms, found = estimate.terms, []
    for layer in spec.memory_layers:
        tile = program.tile(layer.name) if layer.name in program.layers else None
        held, capacity, unit = _layer_usage(layer.name, spec, estimate)
        name = "dram" if layer.name == spec.home.name and "dram_s" in terms else layer.name
        moved, seconds = terms.get(f"{name}_bytes"), terms.get(f"{name}_s")
        bandwidth = layer.bandwidth_bytes_per_s if seconds is not None else None
        found.append(LayerUse(layer.name, tile, held, capacity, unit, moved, bandwidth, seconds))
    return tuple(found)


def _layer_usage(layer: str, spec: DeviceSpec, estimate: Estimate) -> tuple[float | None, float | None, str]:
    """Return how much of a layer a program uses, the maximum and the unit; ``(None, None, "")`` if not modelled."""
    terms, lim = estimate.terms, spec.limits
    if spec.traits.blocks and layer == spec.memory_layers[0].name:
        most = lim.registers_per_thread or lim.usable_registers_per_thread
        return terms.get("registers"), most, "registers per thread"
    if layer == spec.traits.scratchpad:
        owner = "block" if spec.traits.blocks else "unit"
        return terms.get("scratchpad_bytes"), spec.layer(layer).capacity_bytes, f"bytes per {owner}"
    if spec.traits.simd and layer == spec.memory_layers[0].name and "vectors" in terms:
        return terms["vectors"], lim.usable_vector_registers, "vectors"
    return None, None, ""


def utilization_facts(program: RProgram, spec: DeviceSpec, estimate: Estimate) -> tuple[ProgramFact, ...]:
    """Return a program's occupancy, waves (or tasks), bank conflicts and padding."""
    facts = _gpu_facts(program, spec, estimate) if spec.traits.blocks else _cpu_facts(spec, estimate)
    return (*facts, *_padding_facts(program))


def _gpu_facts(program: RProgram, spec: DeviceSpec, estimate: Estimate) -> list[ProgramFact]:
    terms, lim = estimate.terms, spec.limits
    inner = tiled_product_of_program(program) or program
    batch = perf.batch_of([inner])
    pad = SharedMemoryLayout.of(batch, [inner], spec).scratchpad
    most = blocks_per_unit_by_resource(batch, spec, pad, np.array([int(terms["registers"])], np.int64))
    rooms = {n: int(x[0]) for n, x in most.items()}
    tight = min(rooms, key=lambda n: rooms[n])
    resident, threads = terms["blocks_per_unit"], terms["threads"]
    wave = resident * spec.units
    rest = terms["blocks"] % wave
    held = "; ".join(f"{n} {k}" for n, k in rooms.items())
    facts = [
        ProgramFact("threads of a block", threads, lim.threads_per_block),
        ProgramFact("blocks of a unit", resident, lim.blocks_per_unit, f"bound by {tight} (room for: {held})"),
        ProgramFact("occupancy", resident * threads / (lim.threads_per_unit or threads), 1.0,
                    "threads of a unit in use"),
        ProgramFact("blocks", terms["blocks"], None, f"{spec.units} units hold {wave:.0f} at once"),
        ProgramFact("waves", terms["waves"], None, "the last one is full" if not rest else
             f"the last one has {rest:.0f} of {wave:.0f} blocks"),
    ]  # fmt: skip
    if terms.get("bank_conflicts", 1.0) > 1.0:
        facts.append(
            ProgramFact("bank conflicts", terms["bank_conflicts"], 1.0, "times the wavefronts of the worst operand")
        )
    return facts


def _cpu_facts(spec: DeviceSpec, estimate: Estimate) -> list[ProgramFact]:
    tasks = estimate.terms["tasks"]
    rounds = math.ceil(tasks / spec.units)
    idle, units = 1.0 - tasks / (rounds * spec.units), spec.traits.unit
    meaning = f"share of {units.removesuffix('s')} time without a task, tasks of equal size"
    return [
        ProgramFact("tasks", tasks, None, f"{spec.units} {units}, {rounds} each at most"),
        ProgramFact(f"idle {units}", idle, None, meaning),
    ]


def _padding_facts(program: RProgram) -> list[ProgramFact]:
    found = []
    program = tiled_product_of_program(program) or program
    for a in program.axes:
        tile = program.block_tile[a.name]
        over = -a.extent % tile
        if over and KINDS[program.kind].blocks:
            found.append(ProgramFact(f"padding of {a.name}", over / a.extent, None, f"{a.extent} in tiles of {tile}"))
        elif over:
            found.append(
                ProgramFact(f"last task of {a.name}", a.extent % tile / tile, 1.0, f"{a.extent} in tasks of {tile}")
            )
    return found
