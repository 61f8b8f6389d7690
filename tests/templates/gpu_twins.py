"""What the price of a GPU program takes for decided, and what its template decides: pairs that must be equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from roller.expr import Load
from roller.hardware import DeviceSpec
from roller.perf.tile_batch import TileBatch, batch_of
from roller.te.compat import TensorLoad, tirx, tvm, tvm_ffi
from roller.templates.gpu.common import matrix_operand_copies as matrix_copies
from roller.templates.gpu.common import row_access_widths, row_reads_and_reductions
from roller.templates.gpu.common import vector_widths as gpu_vectors
from roller.templates.gpu.common import window_thread_walks as walk
from roller.templates.gpu.common.convert_winograd_batches import find_matrix_product
from roller.templates.gpu.common.occupancy import registers_for_prefetched_tile
from roller.templates.gpu.common.shared_memory_layout import SharedMemoryLayout
from roller.templates.gpu.common.staged_copy_counts import StagedCopy
from roller.templates.gpu.emit import choose_stage_templates
from roller.templates.gpu.emit.kernel_tensor_context import KernelContext
from roller.templates.gpu.emit.load_into_register_tiles import RegisterTile
from roller.templates.gpu.emit.staged_tiles import CopyRounds
from roller.templates.gpu.emit.tir_statements import Buffer, Stmt, dtype_name
from roller.templates.gpu.matrix import emit as matrix
from roller.templates.gpu.matrix.emit_copy import OperandCopyEmitter
from roller.templates.gpu.rows import emit as rows
from roller.templates.gpu.rows.emit_shifted_columns import ShiftedColumns
from roller.templates.gpu.streaming import emit as streaming
from roller.templates.gpu.warp_group import emit_copies as group_copies
from roller.templates.gpu.window import emit as window
from roller.tile import RProgram
from roller.tile.geometry import Access, Ints
from roller.tile.staged_tile_layout import staged_axes

#: One decision: its name, what the price takes it for, and what the template does.
Twin = tuple[str, Any, Any]


@dataclass
class Emitted:
    """What the templates decided while the kernels of a program were written."""

    kernels: list[Stmt] = field(default_factory=list)
    rounds: dict[Load, CopyRounds] = field(default_factory=dict)
    copies: dict[Load, OperandCopyEmitter] = field(default_factory=dict)
    chunks: dict[Load, bool] = field(default_factory=dict)
    fragments: dict[str, list[RegisterTile]] = field(default_factory=dict)
    shifted: list[ShiftedColumns | None] = field(default_factory=list)
    windows: list[window.WindowKernel] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    #: Widths of vectors in which every buffer is loaded, and stored, over all kernels.
    loaded: dict[str, set[int]] = field(default_factory=dict)
    stored: dict[str, set[int]] = field(default_factory=dict)

    def scratchpad(self) -> int:
        """Return bytes of the scratchpad of the first kernel."""
        mine = [b for b in self.buffers if b.scope().startswith("shared")]
        # Buffers of one name follow each other, and TVM gives them one place.
        return sum({b.name: _bytes(b) for b in sorted(mine, key=_bytes)}.values())

    def elements(self, prefix: str) -> int:
        """Return the elements of a thread's arrays in the first kernel whose names begin so."""
        mine = (b for b in self.buffers if b.scope() == "local" and b.name.rstrip("0123456789") == prefix)
        return sum(int(b.shape[0]) for b in mine)


def _bytes(b: Buffer) -> int:
    return int(b.shape[0]) * np.dtype(dtype_name(b).replace("bfloat16", "uint16")).itemsize


def emit(program: RProgram, spec: DeviceSpec) -> Emitted:
    """Write the kernels of a program and return what was decided on the way."""
    out = Emitted()
    cuda = spec.target.get("language") == "cuda"
    ctx = KernelContext(program.expr, async_copies=cuda and spec.execution.async_copy_bytes is not None)
    with _recorded(out):
        out.kernels = choose_stage_templates.write_kernels(ctx, program)

    def visit(node: Any) -> None:
        if type(node).__name__ == "AllocBuffer":
            out.buffers.append(node.buffer)

    tvm_ffi.structural_walk(out.kernels[_own_kernel(program, len(out.kernels))], visit)
    for k in out.kernels:
        _widths(k, out)
    return out


def _own_kernel(program: RProgram, kernels: int) -> int:
    """Return which kernel is that of the program: stages that do not fuse run one after the other by themselves."""
    expr = program.expr
    if kernels == 1 or program.split_k > 1 or program.traits.output_side:
        return 0
    before = expr.stages[: expr.stages.index(expr.anchor)]
    return sum(1 for s in before if s.combiner is not None or s.name in expr.outputs)


def _widths(kernel: Stmt, out: Emitted) -> None:
    """Note in how wide vectors a kernel accesses its buffers."""

    def accesses(node: Any) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()

        def visit(n: Any) -> None:
            if isinstance(n, TensorLoad):
                found["load", n.source.name] += 1
            elif isinstance(n, tirx.BufferStore):
                found["store", n.buffer.name] += 1

        tvm_ffi.structural_walk(node, visit)
        return found

    def note(found: Counter[tuple[str, str]], width: int) -> None:
        for kind, name in +found:
            (out.loaded if kind == "load" else out.stored).setdefault(name, set()).add(width)

    single = accesses(kernel)

    def visit(n: Any) -> None:
        if isinstance(n, tirx.For) and n.kind == tvm.tirx.stmt.ForKind.VECTORIZED:
            inside = accesses(n.body)
            single.subtract(inside)
            note(inside, int(n.extent))

    tvm_ffi.structural_walk(kernel, visit)
    note(single, 1)


@contextmanager
def _recorded(out: Emitted) -> Iterator[None]:
    def recorder(owner: Any, name: str, note: Callable[..., None]) -> Any:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = real(*args, **kwargs)
            note(found, *args)
            return found

        return patch.object(owner, name, call)

    def copied(copy: OperandCopyEmitter, *args: Any) -> None:
        out.copies[copy.operand.load] = copy

    patches = [
        recorder(CopyRounds, "of", lambda r, ctx, t, *_: out.rounds.setdefault(t.load, r)),
        recorder(matrix, "OperandCopyEmitter", copied),
        recorder(
            group_copies, "_chunks_are_aligned_runs", lambda found, ctx, t, *_: out.chunks.update({t.load: found})
        ),
        recorder(
            rows,
            "register_tiles_of_loads",
            lambda f, c, w, m, prefix, *_: out.fragments.setdefault(prefix, []).extend(f),
        ),
        recorder(
            streaming,
            "register_tiles_of_loads",
            lambda f, c, w, m, prefix, *_: out.fragments.setdefault(prefix, []).extend(f),
        ),
        recorder(ShiftedColumns, "of", lambda found, *_: out.shifted.append(found)),
        recorder(window.WindowKernel, "_row_vector_lead_width_and_count", lambda found, w: out.windows.append(w)),
    ]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def twins(program: RProgram, spec: DeviceSpec) -> Iterator[Twin]:
    """Return every decision of a program's price with that of its template."""
    found = find_matrix_product(batch_of([program]))
    program = program if found is None else found.inner(program)
    batch, done = batch_of([program]), emit(program, spec)
    laid = SharedMemoryLayout.of(batch, [program], spec)
    yield "scratchpad bytes", int(laid.scratchpad[0]), done.scratchpad()
    if program.structure == "rows":
        yield from _rows(batch, done)
        yield from _row_widths(batch, done)
    elif program.structure == "streaming":
        yield from _copies(batch, laid.padding, done)
        if not batch.staged:
            yield from _stream_widths(batch, done)
    elif program.structure == "matrix":
        yield from _matrix(batch, spec, done)
    elif program.structure == "window":
        yield from _window(batch, done)
    elif program.structure == "tiled":
        yield from _copies(batch, laid.padding, done)
        yield "waits in registers", bool(registers_for_prefetched_tile(batch, spec)[0]), done.elements("next") > 0


def _stream_widths(batch: TileBatch, done: Emitted) -> Iterator[Twin]:
    """Return in how wide vectors a stream accesses tensors; smaller kernels of other outputs are by themselves."""
    if len(done.kernels) == 1:
        g = batch.geometry
        yield from _loads([(a, gpu_vectors.access_width(a, batch)) for a in g.reads], done)
        yield from _stores([(g.store, gpu_vectors.store_width(batch))], done)


def _row_widths(batch: TileBatch, done: Emitted) -> Iterator[Twin]:
    shape = row_reads_and_reductions.RowReadsAndReductions.of(batch.geometry)
    if len(done.kernels) == 1 and not shape.other_bytes:
        at_edges = row_access_widths.shifted_vector_elements(batch)[0] > 1
        reads = [(r.access, row_access_widths.row_access_width(r.access, batch)) for r in shape.reads]
        yield from _loads(reads, done, at_edges=at_edges)
        yield from _stores(
            [(a, row_access_widths.row_access_width(a, batch)) for a in shape.stores], done, at_edges=at_edges
        )


def _loads(accesses: Sequence[tuple[Access, Ints]], done: Emitted, *, at_edges: bool = False) -> Iterator[Twin]:
    yield from _accessed("loads", accesses, done.loaded, at_edges)


def _stores(accesses: Sequence[tuple[Access, Ints]], done: Emitted, *, at_edges: bool = False) -> Iterator[Twin]:
    yield from _accessed("stores", accesses, done.stored, at_edges)


def _accessed(
    what: str, accesses: Sequence[tuple[Access, Ints]], emitted: Mapping[str, set[int]], at_edges: bool
) -> Iterator[Twin]:
    """Return the widths of all accesses to each tensor: at edges of shifted rows single elements come beside them."""
    priced: dict[str, set[int]] = {}
    for a, width in accesses:
        priced.setdefault(a.tensor.name, set()).update({int(width[0])} | ({1} if at_edges and width[0] > 1 else set()))
    for name, widths in priced.items():
        if name in emitted:  # what no element needs is not there
            yield f"{what} of {name}: elements at once", sorted(widths), sorted(emitted[name])


def _reads(batch: TileBatch, load: Load) -> bool:
    """Whether the program itself loads this: smaller kernels of the same operator have loads of their own."""
    return any((a.tensor.name, a.index) == (load.tensor, load.index) for a in batch.geometry.reads)


def _access(batch: TileBatch, load: Load) -> Access:
    return next(a for a in batch.geometry.reads if (a.tensor.name, a.index) == (load.tensor, load.index))


def _copies(batch: TileBatch, padding: Mapping[str, Ints], done: Emitted) -> Iterator[Twin]:
    for load, r in ((x, r) for x, r in done.rounds.items() if _reads(batch, x)):
        a, name = _access(batch, load), f"copy of {load.tensor}"
        axes = staged_axes(batch.geometry.expr.anchor, load, a.tensor)
        copy = StagedCopy.of(a, batch, axes, padding.get(load.tensor, 0))
        yield f"{name}: elements at once", int(copy.width[0]), r.width
        yield f"{name}: per dimension", tuple(copy.counts[0].tolist()), r.counts
        yield f"{name}: rounds", int(copy.rounds[0]), r.count
        yield f"{name}: axes", axes, r.tile.layout.axes


def _matrix(batch: TileBatch, spec: DeviceSpec, done: Emitted) -> Iterator[Twin]:
    for c in matrix_copies.operand_copies(batch):
        load, name = c.operand.load, f"operand {c.operand.load.tensor}"
        if load in done.copies:
            copy = done.copies[load]
            yield f"{name}: rounds", int(c.rounds[0]), copy.rounds.count
            width, asynchronous = copy.rounds.width, copy.asynchronous
        else:
            width, asynchronous = (c.operand.chunk, True) if done.chunks[load] else (1, False)
        yield f"{name}: elements at once", int(c.width[0]), width
        yield f"{name}: asynchronous", bool(c.is_async(spec)[0]), asynchronous


def _window(batch: TileBatch, done: Emitted) -> Iterator[Twin]:
    (t,), w = done.windows, walk.window_walk(batch)
    for r in done.rounds.values():
        yield "copy: elements at once", int(w.copy_width[0]), r.width
    yield "row: elements at once", int(w.width[0]), t.width
    yield "row: elements held", int(w.row[0]), int(t.row.shape[0])
    yield "weights", int(w.weights[0]), sum(int(b.shape[0]) for b, _ in t.weights.values())


def _rows(batch: TileBatch, done: Emitted) -> Iterator[Twin]:
    shape = row_reads_and_reductions.RowReadsAndReductions.of(batch.geometry)
    reads = {(r.access.tensor.name, r.access.index): r for r in shape.reads}
    kept = {
        key
        for key, r in reads.items()
        if r.keepable and row_reads_and_reductions.whole_rows_in_registers_mask(batch)[0]
    }
    held = done.fragments.get("kept", ())
    yield "kept in registers", kept, {(f.load.tensor, f.load.index) for f in held}
    shifted = next((s for s in done.shifted if s is not None), None)
    yield "shift", int(row_access_widths.shifted_vector_elements(batch)[0]), shifted.shift.width if shifted else 1
    for f in (*held, *done.fragments.get("vec", ())):
        r = reads.get((f.load.tensor, f.load.index))
        if r is not None:
            width = int(row_access_widths.row_access_width(r.access, batch)[0])
            # The kernel of another stage may load the same by threads of its own.
            own = {x.width for x in (*held, *done.fragments.get("vec", ())) if x.load == f.load}
            yield f"load of {f.load.tensor}: elements at once", width, width if width in own else f.width
