"""Template for reductions by warp groups: wgmma reads both operands from the scratchpad, and sums stay in registers.

In every step, the copies of the step are published to the matrix unit; after a barrier, every warp group issues its
products and meanwhile copies a later step. With three stages or more, the products of one step are still running when
the next products are issued; their stage is refilled only after the next barrier, which all threads reach after waiting
for these products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roller.expr import Stage
from roller.te.compat import tirx
from roller.templates.gpu.emit import device_functions as device
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.reduction_kernels import kernels_in_reduction_steps
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    allocate_buffers_around,
    block_barrier,
    declare_buffer,
    dtype_name,
    if_all,
    int32_literal,
    kernel_under_thread_axes,
    load,
    loop,
    nested_loops,
    sequence_of,
    store,
)
from roller.templates.gpu.matrix.emit import MatrixKernel
from roller.templates.gpu.matrix.emit_epilogue_and_store import ResultWriter, finish_and_store
from roller.templates.gpu.matrix.store_method import COLUMNS, PAIR, QUAD
from roller.templates.gpu.warp_group import emit_wgmma_functions as group_functions
from roller.templates.gpu.warp_group.emit_copies import copy_group_tile
from roller.tile import RProgram
from roller.tile.matrix_operands import Operand
from roller.tile.vector_access_widths import is_vectorizable
from roller.tile.warp_group_tiles import GroupTile, group_tile

#: Number of the instruction's rows that one warp of the group holds.
_WARP_ROWS = 16


@dataclass
class WarpGroupKernel(MatrixKernel):
    """State of one warp-group kernel while it is written."""

    def __post_init__(self) -> None:
        """Lay out the ring of tiles, and the sums of one thread."""
        self._set_up_axes_and_operands()
        f = self.fragment
        self.across = self.register[self.m_axis] // f.m, self.register[self.n_axis] // f.n
        self.sums = declare_buffer(
            "sums", (self.across[0] * self.across[1] * f.m * f.n // f.threads,), f.accumulator, "local"
        )
        a, b = self.operands
        self.group_tiles = self._group_tile(a, f.m), self._group_tile(b, f.n)
        self.offsets = 0, self.group_tiles[0].bytes // a.tensor.itemsize_bytes
        self.slot_elements = sum(t.bytes for t in self.group_tiles) // a.tensor.itemsize_bytes
        self.ring = declare_buffer("ring", (self.program.stages * self.slot_elements,), f.operand, "shared.dyn")
        self.starts = declare_buffer("starts", (2,), "uint64", "local")

    def _group_tile(self, operand: Operand, step: int) -> GroupTile:
        """Lay out an operand: lines run along the axis whose neighbours are adjacent in memory."""

        def contiguous(axis: str) -> bool:
            index, extent = operand.load.index, self.domain.real[axis]
            return is_vectorizable(index, operand.tensor, axis, extent, operand.chunk)

        k_major = contiguous(operand.k_axis) or not (operand.transposed or contiguous(operand.axis))
        axes = operand.axis, operand.k_axis
        return group_tile(operand.load, operand.tensor, axes, self.program.block_tile, step, k_major)

    # ---- the reduction

    def accumulate(self) -> Stmt:
        """Return the statements that clear the sums and run all of this block's reduction steps."""
        self.ctx.own_barriers = True
        extent = int(self.sums.shape[0])
        zero = tirx.const(0.0, self.fragment.accumulator)
        init = loop("r", extent, lambda r: store(self.sums, zero, r), unroll=True)
        hold = device.call_device_function(
            f"roller_group_hold<{extent}>", device.address_of_element(self.sums, int32_literal(0))
        )
        return sequence_of([init, hold, self._write_descriptors(), self._overlapped_step_loop(), hold])

    def _overlapped_step_loop(self) -> Stmt:
        """Return the loop over steps; see the module's description."""
        count, base = self._steps()
        running = self.fragment.running_steps(self.program.stages)  # groups of products that outlive their step
        ahead = self.program.stages - 1 - running

        def fill(step: Expr) -> Stmt:
            # Steps that do not exist commit empty groups, because step n waits for group n.
            return sequence_of([if_all([step < count], self._copies(base(step), step)), device.commit_async_copies()])

        def one(step: Expr) -> Stmt:
            before, after = ([], [fill(step + ahead)]) if ahead else ([fill(step)], [])
            last = [] if ahead else [block_barrier()]
            return sequence_of(
                [
                    *before, device.wait_for_async_copies(max(ahead - 1, 0)),
                    device.call_device_function("roller_publish"),
                    block_barrier(),
                    self._start_products(step), *after, device.call_device_function(f"roller_group_wait<{running}>"),
                    *last,
                ]
            )  # fmt: skip

        first = [loop("fill", ahead, fill)] if ahead else []
        rest = [device.call_device_function("roller_group_wait<0>")] if running else []
        return sequence_of([*first, loop("step", count, one), *rest])

    def _copies(self, base: Mapping[str, Expr], step: Expr) -> Stmt:
        """Return the statements that copy both operands' tiles for one step."""
        threads, slot = self.program.threads_per_block, self._slot(step) * self.slot_elements
        return sequence_of(
            [
                copy_group_tile(self.ctx, t, self.domain, base, (self.thread.var, threads), self.ring, slot + offset)
                for t, offset in zip(self.group_tiles, self.offsets, strict=True)
            ]
        )

    def _write_descriptors(self) -> Stmt:
        """Describe this warp group's part of both operands in the first slot; other slots are at fixed distances."""
        found = []
        for n, (t, offset) in enumerate(zip(self.group_tiles, self.offsets, strict=True)):
            own = device.address_of_element(self.ring, offset + t.start(self.group[t.axis], 0))
            fields = (int32_literal(x) for x in (t.leading_bytes, t.stride_bytes, t.swizzle))
            found.append(
                store(self.starts, tirx.call_extern("uint64", "roller_group_tile", own, *fields), int32_literal(n))
            )
        return sequence_of(found)

    def _start_products(self, step: Expr) -> Stmt:
        """Return the statements that issue a step's products on this warp group's part of the tiles."""
        f, (a, b) = self.fragment, self.group_tiles
        name = group_functions.define_wgmma_function(f, not a.k_major, not b.k_major)
        calls = []
        for k in range(0, a.depth, f.k):
            for i in range(self.across[0]):
                for j in range(self.across[1]):
                    sums = device.address_of_element(
                        self.sums, int32_literal((i * self.across[1] + j) * (f.m * f.n // f.threads))
                    )
                    operands = (
                        self._operand_descriptor(0, step, i * f.m, k),
                        self._operand_descriptor(1, step, j * f.n, k),
                    )
                    calls.append(device.call_device_function(name, sums, *operands))
        return sequence_of(
            [
                device.call_device_function("roller_group_fence"),
                *calls,
                device.call_device_function("roller_group_commit"),
            ]
        )

    def _operand_descriptor(self, n: int, step: Expr, row: int, k: int) -> Expr:
        """Return the descriptor of a product's operand, computed from the group's descriptor for the first slot."""
        t = self.group_tiles[n]
        moved = self._slot(step) * (self.slot_elements // t.chunk) + t.start(row, k) // t.chunk
        return load(self.starts, int32_literal(n)) + tirx.Cast("uint64", moved)

    # ---- the result

    def kernel(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...] = ()) -> Stmt:
        """Return the kernel; ``prefix`` holds leading indices of ``target`` (the part of a split reduction)."""
        body = sequence_of([self.accumulate(), self._write(result, target, prefix)])
        return kernel_under_thread_axes(
            (self.block, self.thread), allocate_buffers_around([self.ring, self.sums, self.starts], body)
        )

    def _write(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...]) -> Stmt:
        """Store all sums of this thread, as many neighbours along n at once as the output allows."""
        # Sum ``4 c + 2 h + e`` of a product of 64 rows lies at row ``16 warp + lane / 4 + 8 h`` and column
        # ``8 c + 2 (lane % 4) + e`` (PTX manual, wgmma: registers of D). If such pairs are narrow, the four lanes of a
        # row exchange the pairs of four neighbouring columns ``c``, so that each lane holds all eight results of one
        # column.
        writer, f = ResultWriter(self.ctx, self.stage, result, target, prefix), self.fragment
        way = writer.choose_store_method(f, self.n_axis, self.register[self.n_axis])
        exchanged, width = way.exchanged, way.width
        totals = declare_buffer("totals", (COLUMNS,), f.accumulator, "local")
        out = declare_buffer("out", (width,), dtype_name(target), "local")
        quad = tirx.floormod(self.lane, QUAD)

        def sum_at(at: Mapping[str, Expr], c: Expr, e: Expr) -> Expr:
            product = at["i"] * self.across[1] + at["j"]
            return load(self.sums, ((product * (f.n // COLUMNS) + c) * 2 + at["h"]) * PAIR + e)

        def element(at: dict[str, Expr]) -> Stmt:
            row = at["i"] * f.m + tirx.floordiv(self.lane, 32) * _WARP_ROWS + at["h"] * 8
            row = row + tirx.floordiv(tirx.floormod(self.lane, 32), QUAD)
            first = at["j"] * f.n
            if not exchanged:
                column = first + at["c"] * COLUMNS + quad * PAIR + at["e"]
                return finish_and_store(
                    self, writer, row, column, width, out, lambda v: sum_at(at, at["c"], at["e"] + v)
                )
            taken = [
                store(totals, sum_at(at, at["c"] * QUAD + b, int32_literal(e)), int32_literal(b * PAIR + e))
                for b in range(QUAD) for e in range(PAIR)
            ]  # fmt: skip
            swap = device.call_device_function(
                "roller_quad_exchange", device.address_of_element(totals, int32_literal(0))
            )
            column = first + (at["c"] * QUAD + quad) * COLUMNS
            return sequence_of(
                [*taken, swap, finish_and_store(self, writer, row, column, width, out, lambda v: load(totals, v))]
            )

        columns = f.n // COLUMNS // (QUAD if exchanged else 1)
        names = [("i", self.across[0]), ("j", self.across[1]), ("c", columns), ("h", 2)]
        names += [] if exchanged else [("e", PAIR // width)]
        return allocate_buffers_around([totals, out] if exchanged else [out], nested_loops(names, element, unroll=True))


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernels of warp groups, or ``None``; see :func:`kernels_in_reduction_steps`."""
    return kernels_in_reduction_steps(ctx, program, stages, WarpGroupKernel)
