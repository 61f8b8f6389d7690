"""Template for reductions on matrix units: a ring of scratchpad tiles, register fragments, an epilogue on accumulators.

In every reduction step, the tiles of a later step are copied into the ring while groups of threads load and
multiply fragments of this step's tiles. Reduction axes other than the axis along k (a convolution's window) are stepped
over one point at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from roller.errors import BuildError
from roller.expr import Stage
from roller.te.compat import tirx
from roller.te.emit_tvm_expressions import emit_index
from roller.templates.gpu.common.stored_results import axes_in_store_order
from roller.templates.gpu.emit.axis_map import AxisMap, axis_map, block_coordinates
from roller.templates.gpu.emit.device_functions import address_of_element, commit_async_copies, wait_for_async_copies
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.padding_mask_analysis import padding_is_neutral
from roller.templates.gpu.emit.reduction_kernels import kernels_in_reduction_steps
from roller.templates.gpu.emit.staged_tiles import TileDomain
from roller.templates.gpu.emit.tir_statements import (
    Buffer,
    Expr,
    Stmt,
    VaryingCount,
    allocate_buffers_around,
    block_barrier,
    declare_buffer,
    if_all,
    int32_literal,
    is_fixed_count,
    kernel_under_thread_axes,
    loop,
    sequence_of,
    thread_axis,
    unravel_index,
)
from roller.templates.gpu.matrix.emit_copy import OperandCopyEmitter, swizzle_map
from roller.templates.gpu.matrix.emit_epilogue_and_store import store_all_results
from roller.templates.gpu.matrix.emit_units import MatrixUnit, OperandPlace, make_matrix_unit
from roller.tile import RProgram
from roller.tile.matrix_operands import Operand, make_operands, matrix_block_scratchpad_bytes, swizzle_of_operand
from roller.tile.scratchpad_bytes import STATIC_SHARED_BYTES


@dataclass
class MatrixKernel:
    """State of one kernel on a matrix unit while it is written."""

    ctx: KernelContext
    stage: Stage
    program: RProgram

    def __post_init__(self) -> None:
        self._set_up_axes_and_operands()
        self._allocate_ring()
        m, n = self.register[self.m_axis], self.register[self.n_axis]
        self.unit: MatrixUnit = make_matrix_unit(
            self.fragment, self.operands, m, n, self.lane, self._padding_of_both_operands()
        )

    def _set_up_axes_and_operands(self) -> None:
        """Set up axes, threads and operands, and check that the template fits."""
        p, s = self.program, self.stage
        assert p.fragment is not None
        self.fragment = p.fragment
        self.maps: tuple[AxisMap, ...] = tuple(axis_map(p, a) for a in axes_in_store_order(s))
        self.domain = TileDomain.of(s, p)
        self.m_axis, self.n_axis, self.k_axis = p.matrix_axes
        self.register: Mapping[str, int] = p.tile("register")
        self._set_up_threads()
        self.operands = make_operands(s, self.ctx.expr.tensors, p.matrix_axes, p.block_tile)
        self._check()

    def _set_up_threads(self) -> None:
        """Set up block, group of threads and lane, and the positions of their tiles."""
        p = self.program
        tiles = math.prod(m.steps for m in self.maps)
        self.block = thread_axis("blockIdx.x", p.split_k * tiles)
        self.thread = thread_axis("threadIdx.x", p.threads_per_block)
        self.part = tirx.floordiv(self.block.var, tiles) if p.split_k > 1 else int32_literal(0)
        within = tirx.floormod(self.block.var, tiles) if p.split_k > 1 else self.block.var
        blocks = block_coordinates(within, [m.steps for m in self.maps], p.raster)
        self.base: Mapping[str, Expr] = {m.name: b * m.tile for m, b in zip(self.maps, blocks, strict=True)}
        groups = p.threads_per_block // self.fragment.threads
        group = tirx.floordiv(self.thread.var, self.fragment.threads) if groups > 1 else int32_literal(0)
        self.lane = tirx.floormod(self.thread.var, self.fragment.threads) if groups > 1 else self.thread.var
        self.group_index = group
        places = unravel_index(group, [m.threads for m in self.maps])
        self.group: Mapping[str, Expr] = {m.name: g * m.registers for m, g in zip(self.maps, places, strict=True)}

    def _check(self) -> None:
        """Raise an error for programs that the template would compute wrongly."""
        f, where = self.fragment, self.ctx.expr.name
        multiples = {self.m_axis: f.m, self.n_axis: f.n, self.k_axis: f.k}
        for a in self.stage.axes:
            unit = multiples.get(a.name)
            block, register = self.domain.tile[a.name], self.register[a.name]
            if (unit is None and block != 1) or (unit is not None and (register % unit or block % unit)):
                raise BuildError(
                    f"{where}: axis '{a.name}': expected tiles of {unit or 1}, got {register} and {block}. "
                    f"Tiles of '{f.name}' are multiples of {f.m}, {f.n}, {f.k} along {self.program.matrix_axes}."
                )
        for o, padding in zip(self.operands, self._padding_of_both_operands(), strict=True):
            row_bytes = o.pitch(padding) * o.tensor.itemsize_bytes
            if not f.reads_scratchpad and row_bytes % f.row_bytes:
                raise BuildError(
                    f"{where}: rows of '{o.tensor.name}' in the scratchpad: expected multiples of {f.row_bytes} bytes, "
                    f"got {row_bytes}. Pad them: '{f.name}' cannot read others."
                )
        fixed = {o.load: 0.0 for o in self.operands}
        beyond = [a.name for a in self.stage.reduction_axes if self.domain.overhangs(a.name)]
        if any(not padding_is_neutral(self.stage, a, fixed, 0.0) for a in beyond) or any(
            o.load.guard and o.load.outside != 0.0 for o in self.operands
        ):
            raise BuildError(f"{where}: expected operands that are zero outside. Use another structure.")

    def _padding_of_both_operands(self) -> tuple[int, int]:
        padding = dict(self.program.storage_padding)
        a, b = (padding.get(o.tensor.name, 0) for o in self.operands)
        return a, b

    def _allocate_ring(self) -> None:
        """Allocate the ring: the tiles of all stages of A, then the tiles of B."""
        p, padding = self.program, self._padding_of_both_operands()
        sizes = [o.elements(x) for o, x in zip(self.operands, padding, strict=True)]
        self.tile_elements = dict(zip(self.operands, sizes, strict=True))
        self.tile_start = dict(zip(self.operands, (0, p.stages * sizes[0]), strict=True))
        itemsize = self.operands[0].tensor.itemsize_bytes
        total = matrix_block_scratchpad_bytes(p, self.operands) // itemsize
        scope = "shared.dyn" if total * itemsize > STATIC_SHARED_BYTES else "shared"
        self.pool: Buffer = declare_buffer("pool", (total,), f"uint{8 * itemsize}", scope)
        threads = self.thread.var, p.threads_per_block
        self.copies = [
            OperandCopyEmitter(self.ctx, o, self.domain, (x, swizzle_map(o, self.fragment, x)), self.pool, threads)
            for o, x in zip(self.operands, padding, strict=True)
        ]

    # ---- the reduction

    def accumulate(self) -> Stmt:
        """Return the statements that clear the accumulators and run all of this block's reduction steps."""
        count, base = self._steps()
        ring = self._steps_without_ring(count, base) if self.program.stages == 1 else self._steps_with_ring(count, base)
        return sequence_of([self.unit.clear(), ring])

    def _steps(self) -> tuple[Expr | int, Callable[[Expr], Mapping[str, Expr]]]:
        """Return the number of steps of this block, and the function that maps a step to the start of its tiles."""
        axes = self.stage.reduction_axes
        steps = [self.domain.steps(a.name) for a in axes]
        total, parts = self.domain.count_tiles_along_axes(axes), self.program.split_k
        differs = isinstance(total, VaryingCount)
        share = VaryingCount.of(-(-total // parts), differs)
        first = self.part * share if parts > 1 else int32_literal(0)

        def base(step: Expr) -> Mapping[str, Expr]:
            places = unravel_index(first + step if parts > 1 else step, steps)
            return {**self.base, **{a.name: x * self.domain.tile[a.name] for a, x in zip(axes, places, strict=True)}}

        if parts == 1 or (total % parts == 0 and not differs):
            return share, base
        return tirx.max(tirx.min(int32_literal(share), int32_literal(total) - first), int32_literal(0)), base

    def _steps_without_ring(self, count: Expr | int, base: Callable[[Expr], Mapping[str, Expr]]) -> Stmt:
        """Return the loop over steps with one tile at a time: copy, barrier, compute, barrier."""

        def step(s: Expr) -> Stmt:
            at = base(s)
            waits = [commit_async_copies(), wait_for_async_copies(0)] if self._has_async_copies else []
            through = [x for c in self._through_registers for x in c.now(at, self._start(c.operand, int32_literal(0)))]
            return sequence_of(
                [
                    *self._issue_async_copies(at, int32_literal(0)),
                    *through,
                    *waits,
                    block_barrier(),
                    self.compute(int32_literal(0)),
                    block_barrier(),
                ]
            )

        return loop("step", count, step)

    def _steps_with_ring(self, count: Expr | int, base: Callable[[Expr], Mapping[str, Expr]]) -> Stmt:
        """Return the loop over steps whose copies are ``stages - 1`` steps ahead of the arithmetic."""
        ahead = self.program.stages - 1

        def fill(s: int) -> Stmt:
            at, slot = base(int32_literal(s)), int32_literal(s)
            copies = [*self._issue_async_copies(at, slot), *self._fetch(at), *self._put(at, slot)]
            return sequence_of(
                [if_all(self._step_exists(int32_literal(s), count), sequence_of(copies)), *self._commit_async_copies()]
            )

        def step(s: Expr) -> Stmt:
            later = s + ahead
            at, slot = base(later), self._slot(later)
            exists = [later < count]
            start = [*self._issue_async_copies(at, slot), *self._fetch(at)]
            end = [if_all(exists, sequence_of(self._put(at, slot)))] if self._through_registers else []
            waits = [wait_for_async_copies(ahead - 1)] if self._has_async_copies else []
            return sequence_of(
                [
                    *waits,
                    block_barrier(),
                    if_all(exists, sequence_of(start)),
                    *self._commit_async_copies(),
                    self.compute(self._slot(s)),
                    *end,
                ]
            )

        return sequence_of([*(fill(s) for s in range(ahead)), loop("step", count, step)])

    def _slot(self, step: Expr) -> Expr:
        return tirx.floormod(step, self.program.stages)

    def _step_exists(self, step: Expr, count: Expr | int) -> list[Expr]:
        if is_fixed_count(count) and self.program.stages - 1 <= count:
            return []
        return [tirx.LT(step, int32_literal(count)) if isinstance(count, VaryingCount) else step < count]

    @property
    def _has_async_copies(self) -> bool:
        return any(c.asynchronous for c in self.copies)

    @property
    def _through_registers(self) -> list[OperandCopyEmitter]:
        return [c for c in self.copies if not c.asynchronous]

    def _start(self, operand: Operand, slot: Expr) -> Expr:
        return slot * self.tile_elements[operand] + self.tile_start[operand]

    def _issue_async_copies(self, at: Mapping[str, Expr], slot: Expr) -> list[Stmt]:
        return [c.issue(at, self._start(c.operand, slot)) for c in self.copies if c.asynchronous]

    def _commit_async_copies(self) -> list[Stmt]:
        return [commit_async_copies()] if self._has_async_copies else []

    def _fetch(self, at: Mapping[str, Expr]) -> list[Stmt]:
        return [c.fetch(at) for c in self._through_registers]

    def _put(self, at: Mapping[str, Expr], slot: Expr) -> list[Stmt]:
        return [c.put(at, self._start(c.operand, slot)) for c in self._through_registers]

    def compute(self, slot: Expr) -> Stmt:
        """Multiply the tiles of one slot; fragments of the next k step are loaded before the current ones are used."""
        steps = self.domain.tile[self.k_axis] // self.fragment.k
        a, b = (self._place(o, slot) for o in self.operands)
        out = [self.unit.load(a, b, 0)]
        for k in range(steps):
            out += [self.unit.load(a, b, k + 1)] if k + 1 < steps else []
            out.append(self.unit.multiply(k))
        return sequence_of(out)

    def _place(self, operand: Operand, slot: Expr) -> OperandPlace:
        """Return the position of this group's part of the operand's tile in ``slot``."""
        padding = self._padding_of_both_operands()[self.operands.index(operand)]
        moved = swizzle_map(operand, self.fragment, padding)
        start, group = self._start(operand, slot), self.group[operand.axis]
        pitch = operand.pitch(padding)
        if not operand.transposed:  # whole multiples of eight rows do not change how chunks are permuted
            start, group = start + group * pitch, int32_literal(0)

        def at(along: int, spatial: Expr, k: Expr) -> Expr:
            local = {
                **dict.fromkeys(self.stage.extents, int32_literal(0)),
                operand.axis: group + spatial,
                operand.k_axis: k,
            }
            local[operand.row_axis] = local[operand.row_axis] + along
            offset: Expr = int32_literal(0)
            for i, p in zip(operand.layout.dims, operand.layout.pitches(padding), strict=True):
                offset = offset + emit_index(i, local) * p
            return address_of_element(self.pool, start + moved(offset))

        is_swizzled = swizzle_of_operand(operand, self.fragment, padding) is not None
        return OperandPlace(operand, at, pitch * operand.tensor.itemsize_bytes, is_swizzled)

    # ---- the result

    def kernel(self, result: Stage, target: Buffer, prefix: tuple[Expr, ...] = ()) -> Stmt:
        """Return the kernel; ``prefix`` holds leading indices of ``target`` (the part of a split reduction)."""
        fetched = [b for c in self.copies for b in c.buffers]
        body = sequence_of([self.accumulate(), store_all_results(self, result, target, prefix)])
        return kernel_under_thread_axes(
            (self.block, self.thread), allocate_buffers_around([self.pool, *self.unit.buffers, *fetched], body)
        )


def kernels(ctx: KernelContext, program: RProgram, stages: Sequence[Stage]) -> list[Stmt] | None:
    """Return the kernels of a matrix unit, or ``None``; see :func:`kernels_in_reduction_steps`."""
    return kernels_in_reduction_steps(ctx, program, stages, MatrixKernel)
