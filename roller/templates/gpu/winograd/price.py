"""Price of Winograd programs on a GPU: a tiled product and transforms as streams, with one launch each.

A transform moves its tensors and workspaces through L2 once. It also moves them through DRAM once, except for the
workspaces if all three of them together stay in L2. The slowest of these transfers and the issue of the instructions
determine its time. If the workspaces stay in L2, the product finds its operands there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch
from roller.templates.gpu.common.convert_winograd_batches import find_matrix_product, to_matrix_product_batch
from roller.templates.gpu.common.l2_and_dram_traffic import LOADS_IN_FLIGHT, dram_bandwidth
from roller.templates.gpu.common.price import Parts, Terms
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.tiled.price import PHASES as TILED
from roller.tile.geometry import Geometry
from roller.tile.winograd import WINDOW, Matrix, count_vector_operations, winograd_matrices
from roller.tile.winograd_batched_product import THREADS, WinogradProduct

#: Number of instructions with which a thread computes its tile's position, number per load or store including its
#: address, and number per image tile for guards. In machine code (sm_80), 528 and 264 instructions transform an image
#: tile, 232 and 112 an output tile, and 152 and 80 a filter.
PLACE_INSTRUCTIONS, ACCESS_INSTRUCTIONS, GUARD_INSTRUCTIONS = 30.0, 2.0, 120.0
#: Number of registers per thread of a transform.
_REGISTERS = 48


@dataclass(frozen=True)
class _TransformStream:
    """One transform: threads, instructions per thread, bytes of tensors and of workspaces."""

    threads: int
    instructions: float
    tensor_bytes: float
    halo_bytes: float
    workspace_bytes: float

    def beside(self, other: _TransformStream) -> _TransformStream:
        """Return both transforms as one kernel."""
        threads = self.threads + other.threads
        instructions = (self.threads * self.instructions + other.threads * other.instructions) / threads
        moved = (self.tensor_bytes + other.tensor_bytes, self.halo_bytes + other.halo_bytes)
        return _TransformStream(threads, instructions, *moved, self.workspace_bytes + other.workspace_bytes)

    def terms(self, spec: DeviceSpec, cached: bool) -> dict[str, float]:
        """Return ``seconds`` and its terms; ``cached``: whether workspaces stay in L2."""
        lim, lanes = spec.limits, spec.teu.lanes
        assert lim.threads_per_unit and lim.registers_per_unit
        most = min(lim.threads_per_unit, lim.registers_per_unit // _REGISTERS // THREADS * THREADS) * spec.units
        warps = min(-(-self.threads // lanes), most // lanes)
        dram = self.tensor_bytes + (0.0 if cached else self.workspace_bytes)
        l2 = self.tensor_bytes + self.halo_bytes + self.workspace_bytes
        slots = spec.compute.ops_per_cycle_per_unit["issue"] * min(spec.units, -(-self.threads // THREADS))
        terms = {
            "dram_s": dram / float(dram_bandwidth(spec, np.array(warps * LOADS_IN_FLIGHT))),
            "l2_s": l2 / spec.layer("l2").bandwidth_bytes_per_s,
            "compute_s": self.threads * self.instructions / slots / spec.clock_hz,
            "latency_s": 2.0 * (spec.layer("global").latency_s or 0.0),
        }
        launch = spec.execution.launch_s
        terms |= {"seconds": max(terms.values()) + launch, "launch_s": launch}
        return terms | {"dram_bytes": dram, "l2_bytes": l2}


def price(
    batch: TileBatch, spec: DeviceSpec, laid: SharedMemoryLayout | None = None, details: list[Parts] | None = None
) -> Terms:
    """Price a batch of Winograd programs: the terms of a tiled batch, summed over all kernels."""
    # ``transform_s``: seconds of the transforms; ``laid`` is the layout of the product's programs; ``details`` collects
    # the values of the product, then those of the transforms.
    found = find_matrix_product(batch)
    assert found is not None  # the pool offers these structures only for window products
    workspaces = sum(t.nbytes for t in found.expr.tensors.values())
    cached = workspaces <= spec.layer("l2").kept_bytes
    terms = dict(
        TILED.price(to_matrix_product_batch(batch, found), _spec_served_by_l2(spec) if cached else spec, laid, details)
    )
    if cached:
        terms["dram_bytes"] = np.zeros(len(batch))
    constant = found.form.filters.tensor in batch.constants
    parts = [s.terms(spec, cached) for s in _transform_streams(found, batch.geometry, constant)]
    product_s = terms["seconds"]
    for name in parts[0]:
        terms[name] = terms[name] + sum(p[name] for p in parts)
    terms["transform_s"] = np.full(len(batch), sum(p["seconds"] for p in parts))
    terms["workspace_bytes"] = np.full(len(batch), float(workspaces))
    if details is not None:
        details.append({"transforms": parts, "product_s": product_s, "terms": terms, "cached": cached})
    return terms


def _spec_served_by_l2(spec: DeviceSpec) -> DeviceSpec:
    """Return the device as if L2 handled all traffic of the product."""
    l2 = spec.layer("l2")

    held = replace(
        spec.layer("global"),
        bandwidth_bytes_per_s=l2.bandwidth_bytes_per_s,
        read_bandwidth_bytes_per_s=None,
        triad_bandwidth_bytes_per_s=None,
        bandwidth_per_teu_bytes_per_s=None,
        latency_s=l2.latency_s or spec.layer("global").latency_s,
    )
    return replace(spec, memory_layers=tuple(held if x.name == "global" else x for x in spec.memory_layers))


def _transform_streams(found: WinogradProduct, geometry: Geometry, constant: bool) -> tuple[_TransformStream, ...]:
    """Return the transforms that a call launches: of images (and filters unless constant), and of outputs."""
    expr, form, m = geometry.expr, found.form, found.m
    inverse, filters, image = winograd_matrices(m)
    extents, side = expr.anchor.extents, m + WINDOW - 1
    sizes = found.expr.anchor.extents
    u, v = (found.expr.tensors[ld.tensor].nbytes for ld in (form.filters, form.image))
    products_bytes = found.expr.anchor.output.nbytes
    source, weights = (expr.tensors[ld.tensor].nbytes for ld in (form.image, form.filters))
    last = expr.epilogue or expr.anchor
    extras = sum(expr.tensors[n].nbytes for n in {ld.tensor for ld in last.loads} & {t.name for t in expr.inputs})
    extras = extras if last is not expr.anchor else 0
    epilogue = sum(instruction_mix(last.body, None).values()) if last is not expr.anchor else 0.0
    back = _count_transform_instructions(inverse, side, m) + m * m * epilogue
    # A warp reads every row of its tiles once; rows that tiles share with the next row of tiles may be loaded again.
    halo = source * (side / m - 1.0)
    threads = (sizes["c"] * sizes["f"], sizes["c"] * sizes["t"], extents[form.filter] * found.tiles)
    of_filters = _TransformStream(threads[0], _count_transform_instructions(filters, WINDOW, side), weights, 0.0, u)
    of_images = _TransformStream(
        threads[1], _count_transform_instructions(image, side, side) + GUARD_INSTRUCTIONS, source, halo, v
    )
    first = of_images if constant else of_filters.beside(of_images)
    return first, _TransformStream(threads[2], back, last.output.nbytes + extras, 0.0, products_bytes)


def _count_transform_instructions(matrix: Matrix, size: int, height: int) -> float:
    """Return the number of instructions per thread: ``matrix @ values @ matrix^T`` of ``size * size`` values."""
    accesses = size * size + height * height
    return PLACE_INSTRUCTIONS + ACCESS_INSTRUCTIONS * accesses + (size + height) * count_vector_operations(matrix)
