"""Micro-kernel for byte products: a word of one operand is broadcast to all lanes and multiplied by packed words.

The instruction multiplies unsigned bytes by signed bytes. If both operands have the same signedness, an exclusive or
offsets each byte of a row's word by 128, and 128 times the sums of the packed words correct the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from roller.errors import BuildError
from roller.expr import Load, Scalar, transform_scalar
from roller.te.compat import tirx, tvm
from roller.te.emit_tvm_expressions import Expr, emit_index
from roller.templates.cpu.decisions import BOX, PANEL
from roller.templates.cpu.emit.axis_tiling_plans import ReductionPlan, program_decisions
from roller.templates.cpu.emit.prefetch_constant_panels import Hint
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    Stmt,
    allocate_buffer,
    declare_buffer,
    int32_index,
    sequence_of_statements,
)
from roller.templates.cpu.matrix.byte_products import (
    broadcast_and_packed_operands,
    factors_of_byte_product,
    needs_sign_move,
)
from roller.templates.cpu.matrix.emit_word_panels import WordPanel, emit_adjacent_load, emit_word_packing
from roller.templates.cpu.tiled.emit import Env, TiledNest
from roller.templates.cpu.tiled.emit_load_staging_plans import plan_box
from roller.tile import RProgram
from roller.tile.geometry import access_of_load

#: LLVM's names for the multiply-add, and for the multiplication of pairs followed by a separate addition, by lanes.
_DOTS = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}
_PAIRS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}
#: The addition after products of pairs, opaque to LLVM, which would add the products of several words first and need
#: more vectors than there are registers.
_ADD = "roller_add"
_ADD_IR = """define <{n} x i32> @roller_add(<{n} x i32> %a, <{n} x i32> %b) {attributes} alwaysinline {{
  %c = call <{n} x i32> asm sideeffect "vpaddd $2, $1, $0", "=v,v,v"(<{n} x i32> %a, <{n} x i32> %b) {attributes}
  ret <{n} x i32> %c
}}
"""
#: Attributes of a function without memory accesses, so that sums stay in registers.
_PURE = "nounwind willreturn memory(none)"
#: Mask: an exclusive or with it offsets each byte of a word by 128.
_SIGNS = -0x7F7F7F80
#: Maximum number of dot products (vectors) for which the words of a reduction axis are unrolled into the micro-kernel.
_UNROLL_LIMIT = 160


class ByteProductNest(TiledNest):
    """A tiled program whose products are computed by a byte fragment."""

    def _stage_loads(self) -> Scalar:
        """Plan both operands and return the body with the loads of packed operands redirected."""
        program, decisions = self.program, program_decisions(self.program)
        fragment, loads = program.fragment, factors_of_byte_product(self.stage)
        if fragment is None or loads is None or self.vector is None or self.vector.tile % fragment.n:
            raise BuildError(
                f"{program.expr.name}: expected a sum of products of bytes with lanes along whole vectors, got "
                f"{program}. Use structure 'tiled'."
            )
        self.fragment, self.along = fragment, program.matrix_axes[2]
        # Words are processed whole; taps along other axes may be skipped.
        self.skipped = {n: taps for n, taps in self.skipped.items() if n != self.along}
        self.depth = fragment.depth(self.stage.extents[self.along])
        self.word_count = -(-self.stage.extents[self.along] // self.depth)
        vectors = math.prod(s.tile for s in self.spatial) // fragment.n
        self.reduction = tuple(self._plan_in_words(r, vectors) for r in self.reduction)
        broadcast, packed = broadcast_and_packed_operands(decisions.batch)
        self.mine = next(x for x in loads if x.tensor == broadcast.tensor.name)
        self.packed = next(x for x in loads if x.tensor == packed.tensor.name)
        self.flips = needs_sign_move(decisions.batch)
        redirected: dict[Load, Load] = {}
        self.source = self.mine.tensor
        for n, load in enumerate((self.mine, self.packed)):
            access = access_of_load(program.expr, load)
            how = PANEL if load is self.packed else decisions.staging(access)
            name = f"{load.tensor}_packed{n}"
            while name in self.buffers:
                name += "_"
            dtype = self._held(load)
            if how == BOX:
                past = self._elements_past_axis(load)
                halo = plan_box(load, self.stage, self.spatial, self.vector.name, 1, past, program.open_axes)
                self.halos[name] = halo, declare_buffer(name, halo.extents, dtype)
                redirected[load] = Load(name, halo.local)
            elif how == PANEL:
                panel = self._panel(load, bool(decisions.upfront(access)[0]))
                self.panels[name] = panel, declare_buffer(name, panel.shape, dtype)  # type: ignore[assignment]
                redirected[load] = Load(name, ())
            else:
                continue
            if load is self.mine:
                self.source = name
            else:
                self.lanes_panel = name
        combos = math.prod(s.tile for s in self._row_axes_of(self.packed))
        self.sums = declare_buffer("sums", (combos, self.vector.tile), "int32", scope="local")
        return transform_scalar(self.stage.body, lambda x: redirected.get(x, x) if isinstance(x, Load) else x)

    def _elements_past_axis(self, load: Load) -> int:
        """Return how many elements a row's last word reads beyond its axis: 0 unless the axis runs along box rows."""
        along = any(t.axis == self.along for t in load.index[-1].terms)
        return -self.stage.extents[self.along] % self.depth if along else 0

    def _plan_in_words(self, r: ReductionPlan, vectors: int) -> ReductionPlan:
        """Return the plan of a reduction axis, counted in words if words run along it."""
        if r.name != self.along:
            return replace(r, block=0, unroll=False)
        chunk = -(-r.chunk // self.depth)
        unroll = r.chunks == 1 and self.word_count * vectors <= _UNROLL_LIMIT
        return ReductionPlan(r.name, self.word_count, chunk, unroll)

    def _panel(self, load: Load, upfront: bool) -> WordPanel:
        """Return the panel plan of an operand, in words of one instruction."""
        return self._plan_panel_of_words(load, upfront, self.depth, self.word_count)

    def _plan_panel_of_words(self, load: Load, upfront: bool, word: int, words: int) -> WordPanel:
        """Return a panel with ``words`` words of a load along the reduction, with the row or lane axis innermost."""
        used = {x for i in (*load.index, *(b.index for b in load.guard)) for x in i.axes}
        last = self.program.matrix_axes[1 if load is self.packed else 0]
        mine = sorted((s for s in self.spatial if s.name in used), key=lambda s: s.name == last)
        steps = sorted((r for r in self.reduction if r.name in used), key=lambda r: r.name == self.along)
        steps[-1] = replace(steps[-1], extent=words)
        extent = self.stage.extents[self.along]
        return WordPanel(load, tuple(mine), tuple(steps), self.along, word, extent, upfront)

    def _row_axes_of(self, load: Load) -> list[Any]:
        """Return the axes of a register tile, except the lanes' axis, that index a load."""
        used = {x for i in (*load.index, *(b.index for b in load.guard)) for x in i.axes}
        return [s for s in self.order if s is not self.vector and s.name in used]

    def function_body(self) -> Stmt:
        """Return the whole nest of a call, with the function it calls."""
        body = super().function_body()
        if not self.fragment.widens_operands:
            return body
        library = tvm.ir.StringImm(_ADD_IR.format(n=self.fragment.n, attributes=_PURE))
        return tirx.AttrStmt(int32_index(0), "pragma_import_llvm", library, body)

    def _packed(self, panel: Any, buffer: Buffer, first: Env, count: Env) -> Stmt:
        return emit_word_packing(self.nest, panel, self.buffers[panel.load.tensor], buffer, first, count)

    def _hints(self, env: Env) -> list[Hint]:
        return []

    def _micro_kernel(self, env: Env, chunk: Env) -> Stmt:
        if not self.flips:
            return super()._micro_kernel(env, chunk)
        return sequence_of_statements(allocate_buffer(self.sums), super()._micro_kernel(env, chunk))

    def _reduce(self, env: Env, chunk: Env, step: Callable[[Env], Stmt]) -> Stmt:
        """Loop over one chunk and then correct the sums for operands that are offset by 128."""
        body = super()._reduce(env, chunk, step)
        if not self.flips:
            return body
        zero = tirx.Broadcast(int32_index(0), self.fragment.n)
        places = [self._packed_sum_index(c, u) for c in range(int(self.sums.ty.shape[0])) for u in range(self._vectors)]
        return sequence_of_statements(
            *(tirx.BufferStore(self.sums, zero, list(p)) for p in places), body, *self._correct_moved_signs()
        )

    @property
    def _vectors(self) -> int:
        assert self.vector is not None
        return self.vector.tile // self.fragment.n

    def _lane_coordinate(self, u: int) -> Expr:
        return tirx.Ramp(int32_index(u * self.fragment.n), int32_index(1), self.fragment.n)

    def _packed_sum_index(self, combo: int, u: int) -> tuple[Expr, ...]:
        return int32_index(combo), self._lane_coordinate(u)

    def _correct_moved_signs(self) -> list[Stmt]:
        sign = -1 if self._dtype(self.mine) == "int8" else 1
        factor = tirx.Broadcast(int32_index(sign * 128), self.fragment.n)
        out = []
        for inner, u in itertools.product(self._register_tile_rows(), range(self._vectors)):
            index = [*map(int32_index, inner.values()), self._lane_coordinate(u)]
            summed = tirx.BufferLoad(self.sums, list(self._packed_sum_index(self._packed_word_number(inner), u)))
            out.append(tirx.BufferStore(self.acc, tirx.BufferLoad(self.acc, index) + summed * factor, index))
        return out

    def _register_tile_rows(self) -> list[dict[str, int]]:
        """Return the rows of a register tile: positions along all axes except the lanes' axis."""
        axes = [s for s in self.order if s is not self.vector]
        every = itertools.product(*(range(s.tile) for s in axes))
        return [dict(zip((s.name for s in axes), at, strict=True)) for at in every]

    def _packed_word_number(self, inner: Mapping[str, int]) -> int:
        """Return the index of the packed words that a row multiplies in a step."""
        number = 0
        for s in self._row_axes_of(self.packed):
            number = number * s.tile + inner[s.name]
        return number

    def _dtype(self, load: Load) -> str:
        return self.program.expr.tensors[load.tensor].dtype

    def _held(self, load: Load) -> str:
        """Return the dtype in which the instruction takes an operand."""
        return self.fragment.packed_dtype(self._dtype(load))

    def _step(self, env: Env, at: Env) -> Stmt:
        """Add one word to every element of the register tile."""
        assert self.vector is not None
        f, n = self.fragment, self.fragment.n
        point = {**env, **at, self.along: at[self.along] * f.k}
        panel, buffer = self.panels[self.lanes_panel]
        out: list[Stmt] = []
        packed: dict[tuple[int, int], Expr] = {}
        words: dict[tuple[int, ...], Expr] = {}
        mine_axes = self._row_axes_of(self.mine)
        one = tirx.Broadcast(tirx.const(1, "int8" if self._dtype(self.packed) == "uint8" else "uint8"), n * f.k)

        def bound(name: str, value: Expr) -> Expr:
            var = self.nest.variable(name, value)
            out.append(tirx.Bind(var, value))
            return var

        for inner in self._register_tile_rows():
            combo = self._packed_word_number(inner)
            for u in range(self._vectors):
                if (combo, u) not in packed:
                    lanes = {**inner, self.vector.name: u * n}
                    place = panel.place(env, at, lanes)  # type: ignore[attr-defined]
                    b = packed[combo, u] = bound("packed", emit_adjacent_load(buffer, place, n * f.k))
                    if self.flips:
                        index = list(self._packed_sum_index(combo, u))
                        out.append(self._emit_dot_product(self.sums, index, one, b, self._dtype(self.packed) == "int8"))
            key = tuple(inner[s.name] for s in mine_axes)
            if key not in words:
                words[key] = bound("word", self._broadcast_word(point, at, inner))
            for u in range(self._vectors):
                index = [*map(int32_index, inner.values()), self._lane_coordinate(u)]
                out.append(
                    self._emit_dot_product(self.acc, index, words[key], packed[combo, u], self._rows_are_unsigned)
                )
        return sequence_of_statements(*out)

    @property
    def _rows_are_unsigned(self) -> bool:
        """Whether the words of the rows are the unsigned operand."""
        return (self._dtype(self.mine) == "uint8") != self.flips

    def _emit_dot_product(self, sums: Buffer, index: list[Expr], row: Expr, packed: Expr, unsigned_row: bool) -> Stmt:
        n = self.fragment.n
        old, dtype = tirx.BufferLoad(sums, index), f"int32x{n}"
        if self.fragment.widens_operands:
            pairs = tirx.call_llvm_pure_intrin(dtype, _PAIRS[n], row, packed)
            return tirx.BufferStore(sums, tirx.call_extern(dtype, _ADD, old, pairs), index)
        pair = (row, packed) if unsigned_row else (packed, row)
        return tirx.BufferStore(sums, tirx.call_llvm_pure_intrin(dtype, _DOTS[n], old, *pair), index)

    def _broadcast_word(self, point: Env, at: Env, inner: Mapping[str, int]) -> Expr:
        """Return the word of a row, in all lanes."""
        assert self.vector is not None
        n, k, name = self.fragment.n, self.fragment.k, self.source
        if name in self.panels:
            panel, buffer = self.panels[name]
            place = panel.place(point, at, inner)  # type: ignore[attr-defined]
        else:
            buffer = self.halos[name][1] if name in self.halos else self.buffers[name]
            index = self.halos[name][0].local if name in self.halos else self.mine.index
            env = self.at(point, tuple(int32_index(inner.get(s.name, 0)) for s in self.order))
            place = tuple(emit_index(i, env) for i in index)
        word = tirx.reinterpret("int32", emit_adjacent_load(buffer, place, k))
        dtype = self._held(self.mine)
        if self.flips:
            word, dtype = tirx.bitwise_xor(word, tirx.const(_SIGNS, "int32")), "uint8" if dtype == "int8" else "int8"
        return tirx.reinterpret(f"{dtype}x{n * k}", tirx.Broadcast(word, n))


def emit_vector_word_nests(program: RProgram, buffers: dict[str, Buffer]) -> EmittedNests:
    """Return the loop nests of a CPU's ``matrix`` program that adds words to vectors."""
    return ByteProductNest(program, buffers, frozenset(program.constants)).nests()
