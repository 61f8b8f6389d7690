"""Micro-kernel with tile registers (AMX): fragments of rows, packed words and sums, each in a separate register.

A task configures each register's number of rows and bytes per row, and releases the registers at its end. Sums stay in
registers through the reduction; the epilogue reads them from memory.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from roller.errors import BuildError
from roller.expr import Load, stride_between_neighbours, strided_run_along
from roller.te.compat import tirx, tvm
from roller.te.emit_tvm_expressions import Expr, emit_index
from roller.templates.cpu.emit.axis_tiling_plans import SpatialPlan, coordinate_within_task_name, task_tile_counter_name
from roller.templates.cpu.emit.tir_loop_constructors import (
    Buffer,
    EmittedNests,
    Stmt,
    allocate_buffer,
    declare_buffer,
    if_then,
    int32_index,
    sequence_of_statements,
    write_element,
)
from roller.templates.cpu.matrix.emit_byte_product_kernels import ByteProductNest, emit_vector_word_nests
from roller.templates.cpu.matrix.emit_word_panels import WordPanel
from roller.templates.cpu.matrix.price import TILE_REGISTERS
from roller.templates.cpu.tiled.emit import Env
from roller.tile import RProgram

#: Size (bytes) of the register configuration, and the offsets of each register's bytes per row and number of rows.
_CONFIG_BYTES, _ROW_BYTES_AT, _ROWS_AT = 64, 16, 48
#: Size (bytes) of a word, which occupies one lane.
_WORD = 4
#: Letters for the operands' signedness in the instruction's name, by the dtypes of rows and packed words.
_DOTS = {("int8", "int8"): "ss", ("int8", "uint8"): "su", ("uint8", "int8"): "us", ("uint8", "uint8"): "uu"}


def _tile_functions_llvm(signs: str, dots: Sequence[tuple[int, int, int]]) -> str:
    """Return LLVM functions that wrap the AMX intrinsics, whose register numbers are part of the instruction."""
    out = [
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tilerelease()",
        "declare void @llvm.x86.tilezero(i8 immarg)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        f"declare void @llvm.x86.tdpb{signs}d(i8 immarg, i8 immarg, i8 immarg)",
        _llvm_function("configure", "ptr %p", "ldtilecfg(ptr %p)"),
        _llvm_function("release", "", "tilerelease()"),
    ]
    for r in range(TILE_REGISTERS):
        out.append(_llvm_function(f"zero_{r}", "", f"tilezero(i8 {r})"))
        out.append(_llvm_function(f"load_{r}", "ptr %p, i64 %s", f"tileloadd64(i8 {r}, ptr %p, i64 %s)"))
        out.append(_llvm_function(f"store_{r}", "ptr %p, i64 %s", f"tilestored64(i8 {r}, ptr %p, i64 %s)"))
    for c, a, b in dots:
        out.append(_llvm_function(f"dot_{c}_{a}_{b}", "", f"tdpb{signs}d(i8 {c}, i8 {a}, i8 {b})"))
    return "\n".join(out)


def _llvm_function(name: str, arguments: str, call: str) -> str:
    return f"define void @roller_tile_{name}({arguments}) alwaysinline {{\n  call void @llvm.x86.{call}\n  ret void\n}}"


def _call_tile_function(name: str, *arguments: Expr) -> Stmt:
    return tirx.Evaluate(tirx.call_extern("void", f"roller_tile_{name}", *arguments))


def _address_of_element(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    return tirx.address_of(tirx.BufferLoad(buffer, list(index)))


def _int64_constant(count: int) -> Expr:
    return tirx.const(count, "int64")


class TileRegisterNest(ByteProductNest):
    """A program whose fragments are in tile registers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        m = self.program.matrix_axes[0]
        self.rows: SpatialPlan = next(s for s in self.spatial if s.name == m)
        others = [s for s in self.spatial if s is not self.rows and s is not self.vector]
        self.row_counts = self._split_rows_evenly(self.rows.tile)
        a, b = len(self.row_counts), self._vectors
        if any(s.tile > 1 for s in others) or a * b + a + b > TILE_REGISTERS:
            raise BuildError(
                f"{self.program.expr.name}: expected fragments along {self.program.matrix_axes[:2]} that "
                f"{TILE_REGISTERS} tile registers hold, got {dict(self.program.tiles)}. Take fewer."
            )
        self.config = declare_buffer("config", (_CONFIG_BYTES,), "uint8")
        self.signs = _DOTS[self._dtype(self.mine), self._dtype(self.packed)]

    def _split_rows_evenly(self, rows: int) -> list[int]:
        """Return the number of rows in each fragment of a register tile, distributed evenly."""
        count = -(-rows // self.fragment.m)
        return [rows // count + (n < rows % count) for n in range(count)]

    def _panel(self, load: Load, upfront: bool) -> WordPanel:
        if load is self.mine:
            return super()._panel(load, upfront)
        return self._plan_panel_of_words(load, upfront, _WORD, self.word_count * self.depth // _WORD)

    # ---- registers: sums row by row, then rows, then packed words

    def _sum(self, i: int, j: int) -> int:
        return i * self._vectors + j

    def _row(self, i: int) -> int:
        return len(self.row_counts) * self._vectors + i

    def _lane(self, j: int) -> int:
        return len(self.row_counts) * (self._vectors + 1) + j

    def _first_row_of_fragment(self, i: int) -> int:
        return sum(self.row_counts[:i])

    def _configure_registers(self) -> list[Stmt]:
        """Return the statements that configure all registers."""
        values = [0] * _CONFIG_BYTES
        values[0] = 1  # the palette of eight registers of 1 KiB

        def register(n: int, rows: int, row_bytes: int) -> None:
            values[_ROW_BYTES_AT + 2 * n], values[_ROWS_AT + n] = row_bytes, rows

        lanes = self.fragment.n * _WORD
        for i, rows in enumerate(self.row_counts):
            register(self._row(i), rows, self.depth)
            for j in range(self._vectors):
                register(self._sum(i, j), rows, lanes)
        for j in range(self._vectors):
            register(self._lane(j), self.depth // _WORD, lanes)
        stored = (write_element(self.config, tirx.const(x, "uint8"), int32_index(n)) for n, x in enumerate(values))
        return [
            allocate_buffer(self.config),
            *stored,
            _call_tile_function("configure", _address_of_element(self.config, (int32_index(0),))),
        ]

    def _tiles(self, first: Env, count: Env, start: Env, chunk: Env) -> Stmt:
        return sequence_of_statements(
            *self._configure_registers(), super()._tiles(first, count, start, chunk), _call_tile_function("release")
        )

    # ---- the micro-kernel

    def _micro_kernel(self, env: Env, chunk: Env) -> Stmt:
        begin: Stmt = sequence_of_statements(
            *(_call_tile_function(f"zero_{self._sum(i, j)}") for i, j in self._positions_of_sums())
        )
        end: Stmt = sequence_of_statements(*self._emit_sum_moves("store", self.acc, ()), self._write_back(env))
        if self.chunked:
            place = tuple(env[task_tile_counter_name(s.name)] for s in self.spatial)
            first, last = self._ends(chunk)
            begin = if_then(first, begin, sequence_of_statements(*self._emit_sum_moves("load", self.partial, place)))
            end = if_then(last, end, sequence_of_statements(*self._emit_sum_moves("store", self.partial, place)))
        return sequence_of_statements(
            allocate_buffer(self.acc), begin, self._reduce(env, chunk, lambda at: self._step(env, at)), end
        )

    def _positions_of_sums(self) -> list[tuple[int, int]]:
        return list(itertools.product(range(len(self.row_counts)), range(self._vectors)))

    def _emit_sum_moves(self, how: str, buffer: Buffer, place: tuple[Expr, ...]) -> list[Stmt]:
        """Return the statements that load or store the sums."""
        assert self.vector is not None
        pitch, out = _int64_constant(self.vector.tile * _WORD), []
        for i, j in self._positions_of_sums():
            at = {self.rows.name: self._first_row_of_fragment(i), self.vector.name: j * self.fragment.n}
            index = (*place, *(int32_index(at.get(s.name, 0)) for s in self.order))
            out.append(_call_tile_function(f"{how}_{self._sum(i, j)}", _address_of_element(buffer, index), pitch))
        return out

    def _step(self, env: Env, at: Env) -> Stmt:
        """Multiply each row fragment by each fragment of packed words for one step."""
        assert self.vector is not None
        out = [self._emit_packed_word_load(env, at, j) for j in range(self._vectors)]
        for i in range(len(self.row_counts)):
            out.append(self._emit_row_load(env, at, i))
            for j in range(self._vectors):
                out.append(_call_tile_function(f"dot_{self._sum(i, j)}_{self._row(i)}_{self._lane(j)}"))
        return sequence_of_statements(*out)

    def _emit_packed_word_load(self, env: Env, at: Env, j: int) -> Stmt:
        assert self.vector is not None
        panel, buffer = self.panels[self.lanes_panel]
        words = {**at, self.along: at[self.along] * (self.depth // _WORD)}
        inner = {s.name: int32_index(j * self.fragment.n if s is self.vector else 0) for s in self.spatial}
        place = panel.place(env, words, inner)  # type: ignore[attr-defined]
        return _call_tile_function(
            f"load_{self._lane(j)}", _address_of_element(buffer, place), _int64_constant(self.vector.tile * _WORD)
        )

    def _emit_row_load(self, env: Env, at: Env, i: int) -> Stmt:
        name, first = self.source, self._first_row_of_fragment(i)
        inner = {s.name: int32_index(first if s is self.rows else 0) for s in self.spatial}
        if name in self.panels:
            panel, buffer = self.panels[name]
            place, pitch = panel.place(env, at, inner), self.depth  # type: ignore[attr-defined]
            return _call_tile_function(
                f"load_{self._row(i)}", _address_of_element(buffer, place), _int64_constant(pitch)
            )
        point = self.at(
            {**env, **at, self.along: at[self.along] * self.depth}, tuple(inner[s.name] for s in self.order)
        )
        box = self.halos.get(name)
        index, buffer = (box[0].local, box[1]) if box is not None else (self.mine.index, self.buffers[name])
        place = tuple(emit_index(x, point) for x in index)
        return _call_tile_function(
            f"load_{self._row(i)}", _address_of_element(buffer, place), _int64_constant(self._row_pitch_bytes)
        )

    @functools.cached_property
    def _row_pitch_bytes(self) -> int:
        """Distance in bytes between rows of the operand that is read in place or from a box."""
        box = self.halos.get(self.source)
        if box is not None:
            return int(
                stride_between_neighbours(box[0].local, box[0].extents, coordinate_within_task_name(self.rows.name))
                or 0
            )
        shape = tuple(int(x) for x in self.buffers[self.source].ty.shape)
        run = strided_run_along(self.mine.index, shape, self.rows.name, int(self.stage.extents[self.rows.name]))
        return run.step if run is not None else 0

    def function_body(self) -> Stmt:
        """Return the whole nest of a call, with the functions it calls."""
        dots = [(self._sum(i, j), self._row(i), self._lane(j)) for i, j in self._positions_of_sums()]
        library = tvm.ir.StringImm(_tile_functions_llvm(self.signs, dots))
        return tirx.AttrStmt(int32_index(0), "pragma_import_llvm", library, super().function_body())


def emit_matrix_nests(program: RProgram, buffers: dict[str, Buffer], cores: int) -> EmittedNests:
    """Return the loop nests of a CPU's ``matrix`` program, which uses tile registers or vectors."""
    del cores
    if program.fragment is None or program.fragment.m == 1:
        return emit_vector_word_nests(program, buffers)
    return TileRegisterNest(program, buffers, frozenset(program.constants)).nests()
