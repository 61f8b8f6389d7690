"""Price of Winograd programs: products at the rate of their micro-kernel, transforms, and panel traffic between caches.

Filters are transformed before the tasks, in every call unless they are constant. Operations are counted from the
matrices that the template emits; data of a task beyond its core's L2 come back from L3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from roller.expr import instruction_mix
from roller.hardware import DeviceSpec
from roller.perf.phase_overlap import time_of_two_overlapping_phases
from roller.perf.tile_batch import TileBatch
from roller.templates.cpu.common.conversion_costs import load_conversion_cycles, store_conversion_cycles
from roller.templates.cpu.common.data_kept_in_caches import bandwidth_of_holding_layer, dram_traffic_bytes
from roller.templates.cpu.common.lanes_and_cache_room import lane_count, lane_distance, usable_cache_bytes
from roller.templates.cpu.common.packing_costs import TRANSPOSED
from roller.templates.cpu.tiled.price import KERNEL_CYCLES
from roller.tile.geometry import Floats
from roller.tile.winograd import WINDOW, Matrix, WinogradPlan, count_vector_operations, winograd_matrices

_ITEM_BYTES = 4


def price(batch: TileBatch, spec: DeviceSpec, parts: dict[str, Any]) -> dict[str, Floats]:
    """Price a batch of a ``winograd`` structure: return ``seconds`` and its terms as arrays of shape ``(N,)``."""
    # ``parts["slowest"]`` becomes the overlapped time of arithmetic and memory of each program.
    names = batch.geometry.names
    rows, slowest = [], []
    for register, block in zip(batch.register, batch.block, strict=True):
        tile, task = (dict(zip(names, (int(x) for x in t), strict=True)) for t in (register, block))
        lanes, expr = lane_count(spec, _ITEM_BYTES), batch.geometry.expr
        plan = WinogradPlan.of(expr, batch.structure, tile, task, lanes, batch.open_axes)
        assert plan is not None  # only window products have candidates of these structures
        costs = _ProgramCosts(batch, spec, plan)
        rows.append(costs.terms())
        slowest.append(costs.slowest_s)
    parts["slowest"] = np.array(slowest)
    return {name: np.array([r[name] for r in rows]) for name in rows[0]}


class _ProgramCosts:
    """Computes the terms of one program's price."""

    def __init__(self, batch: TileBatch, spec: DeviceSpec, plan: WinogradPlan) -> None:
        self.batch, self.spec, self.plan = batch, spec, plan.clipped_to_axes
        self.passed = math.prod(t.passed for t in plan.clipped_to_axes.tiled)
        self.geometry = batch.geometry
        self.elements = plan.side**2
        self.constant = plan.form.filters.tensor in batch.constants
        self.slowest_s = 0.0

    def terms(self) -> dict[str, float]:
        """Return ``seconds`` and its terms."""
        spec, plan = self.spec, self.plan
        imbalance = -(-plan.tasks // spec.units) * spec.units / plan.tasks
        hz = spec.clock_hz * spec.units
        cycles = (self._multiply() + self._image() + self._outputs()) * self.passed
        terms = {"compute_s": cycles * plan.tasks / hz * imbalance}
        l2, l3, dram = self._traffic_bytes()
        terms["l2_s"] = l2 / spec.layer("l2").bandwidth_bytes_per_s * imbalance
        terms["l3_s"] = l3 / spec.layer("l3").bandwidth_bytes_per_s * imbalance
        terms["dram_s"] = dram / spec.layer("dram").bandwidth_bytes_per_s
        terms["pack_s"] = 0.0 if self.constant else self._transform_filters_s()
        forks = (1 if self.constant else 2) if plan.tasks > 1 else 0
        terms["launch_s"] = spec.execution.launch_s + forks * (spec.execution.fork_s or 0.0)
        memory = np.array(max(terms["l2_s"], terms["l3_s"], terms["dram_s"]))
        slowest = float(
            time_of_two_overlapping_phases(memory, np.array(terms["compute_s"]), spec.execution.misses_in_flight or 1)
        )
        self.slowest_s = slowest
        vectors = plan.width // plan.lanes
        registers = plan.tiles_per_micro_kernel * vectors + vectors + 1  # one more holds the broadcast
        fits = registers < (spec.limits.vector_registers or 0)
        terms["seconds"] = slowest + terms["pack_s"] + terms["launch_s"] if fits else np.inf
        terms["dram_bytes"] = dram
        terms["tasks"] = float(plan.tasks)
        terms["vectors"] = float(plan.tiles_per_micro_kernel * vectors)
        return terms

    def _instruction_cycles(self, kind: str, vectors: float) -> float:
        """Return how many cycles ``vectors`` vector instructions of one class take."""
        return vectors * self.spec.teu.lanes / self.spec.compute.ops_per_cycle_per_unit[kind]

    def _multiply(self) -> float:
        """Return how many cycles one task's matrix products take."""
        plan, spec = self.plan, self.spec
        vectors = plan.width // plan.lanes
        sums, loads = plan.tiles_per_micro_kernel * vectors, plan.tiles_per_micro_kernel + vectors
        step = max(
            self._instruction_cycles("fma", sums),
            self._instruction_cycles("load_store", loads),
            self._instruction_cycles("issue", sums + loads),
            spec.execution.step_latency_s * spec.clock_hz,
        )
        step += spec.execution.step_issue_s * spec.clock_hz
        kernels = self.elements * plan.panels.box * plan.micro_kernels_per_panel
        return kernels * (plan.channels * step + 2 * sums + KERNEL_CYCLES)

    def _two_sided_product_cycles(self, matrix: Matrix, height: int) -> float:
        """Return how many cycles the two-sided product of one vector's values with ``matrix`` takes."""
        products = height + len(matrix)
        arithmetic = self._instruction_cycles("fma", products * count_vector_operations(matrix))
        return max(arithmetic, self._instruction_cycles("load_store", products * (height + len(matrix))))

    def _image(self) -> float:
        """Return how many cycles it takes to copy and transform one task's part of the image."""
        plan, spec = self.plan, self.spec
        rows, columns = plan.tiled[-2:]
        vectors = plan.channel_vectors * (plan.tiles // (rows.box * columns.box))  # of all images of the task
        positions = (plan.m * rows.box + WINDOW - 1) * (plan.m * columns.box + WINDOW - 1)
        image = next(a for a in self.geometry.loads if a.tensor.name == plan.form.image.tensor)
        strided = lane_distance(image, self.geometry.names.index(plan.form.channel)) != 1
        gather = TRANSPOSED * (spec.execution.element_gather_s or 0.0) * spec.clock_hz
        copy = plan.channel_lanes * gather if strided else self._instruction_cycles("load_store", 2)
        copy += load_conversion_cycles(image, spec)
        tiles = rows.box * columns.box
        return vectors * (
            positions * copy + tiles * self._two_sided_product_cycles(winograd_matrices(plan.m)[2], plan.side)
        )

    def _outputs(self) -> float:
        """Return how many cycles it takes to transform a task's products back, run the epilogue and store results."""
        plan, spec, g = self.plan, self.spec, self.geometry
        outputs = plan.m**2
        mix = [instruction_mix(s.body, None) for s in g.expr.stages if s is not g.expr.anchor]
        epilogue = sum(self._instruction_cycles(c, n * outputs) for one in mix for c, n in one.items())
        contiguous = lane_distance(g.store, g.names.index(plan.form.filter)) == 1
        scatter = (spec.execution.element_scatter_s or 0.0) * spec.clock_hz
        store = 2.0 * outputs if contiguous else outputs * plan.lanes * scatter
        store += outputs * store_conversion_cycles(g.expr, spec)
        vectors = plan.tiles * plan.panels.box * (plan.width // plan.lanes)
        return vectors * (self._two_sided_product_cycles(winograd_matrices(plan.m)[0], plan.side) + epilogue + store)

    def _transform_filters_s(self) -> float:
        """Return the time (seconds) that it takes to transform the filters and write their panels."""
        plan, spec = self.plan, self.spec
        vectors = plan.panels.units * plan.channels * (plan.width // plan.lanes)
        each = TRANSPOSED * (spec.execution.element_gather_s or 0.0) * spec.clock_hz
        gather = WINDOW**2 * plan.lanes * each
        cycles = vectors * (gather + self._two_sided_product_cycles(winograd_matrices(plan.m)[1], WINDOW))
        panels = self._panel_bytes(plan.panels.units)
        cores = spec.units if plan.tasks > 1 else 1
        return cycles / (spec.clock_hz * cores) + 2.0 * panels / float(bandwidth_of_holding_layer(panels, spec))

    def _panel_bytes(self, panels: int) -> float:
        """Return the number of bytes in ``panels`` panels of transformed filters."""
        return float(self.elements * panels * self.plan.channels * self.plan.width * _ITEM_BYTES)

    def _traffic_bytes(self) -> tuple[float, float, float]:
        """Return the numbers of bytes moved from L2 to L1, from L3 to L2, and over the memory bus."""
        plan, spec = self.plan, self.spec
        l1, l2, l3 = (usable_cache_bytes(spec, n) for n in ("l1", "l2", "l3"))
        image = float(self.elements * plan.tiles * plan.channel_pitch * _ITEM_BYTES)
        products = float(self.elements * plan.tiles * plan.panels.box * plan.width * _ITEM_BYTES)
        mine, every = self._panel_bytes(plan.panels.box), self._panel_bytes(plan.panels.units)
        slab, panel = image / self.elements, mine / self.elements / plan.panels.box
        to_l1 = image * (2 if slab + panel <= l1 else 1 + plan.panels.box) + 2 * products
        to_l1 += mine * (1 if panel <= l1 else plan.micro_kernels_per_panel)
        held = image + products
        to_l2 = spec.units * every if held + every <= l2 else plan.tasks * mine
        to_l2 += plan.tasks * 2 * max(0.0, held - l2)
        dram = dram_traffic_bytes(self.batch, spec)
        if every > l3:  # every task reads the panels; unless constant, they are also written, and read before that
            dram += plan.tasks * mine
        return plan.tasks * to_l1, to_l2, dram
