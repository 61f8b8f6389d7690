"""Every access of a kernel lies inside its buffer, reads what was written, and meets no other task's."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

pytest.importorskip("tvm")

import roller
import roller.templates.cpu.rows.emit_reduce
from roller import ops
from roller.compiler.dynamic.dynamic_size_box import SizeBox
from roller.compiler.dynamic.relevant_sizes import relevant_sizes
from roller.compiler.dynamic.symbolic_build import build_symbolic_kernel
from roller.compiler.dynamic.symbolic_programs import SymbolicExpr
from roller.compiler.dynamic.symbolic_search import SearchRequest, construct_symbolic_programs
from roller.errors import BuildError
from roller.te.compat import tirx
from roller.templates.common.options import ConstructOptions
from roller.templates.cpu.emit import build_library
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder, allocate_buffer, declare_buffer, int32_index
from tests.codegen.checked_accesses import faults
from tests.codegen.cpu_programs import canonical, program

SPEC = roller.load_spec("cpu-avx512").emitted
#: Operators with extents that fill no tile, and the names of their constants.
OPERATORS = {
    "product": (lambda: ops.matmul(7, 19, 21, transpose_b=True, epilogue=("bias", "gelu")), ()),
    "constant": (lambda: ops.matmul(5, 35, 18, transpose_b=True), ("B",)),
    "convolution": (lambda: ops.conv2d(1, 3, 9, 8, 5, 3, 3, 2, (1, 0, 2, 1)), ("W",)),
    "groups": (lambda: ops.conv2d(1, 6, 5, 7, 4, 3, 2, dilation=2, groups=2, padding=2), ()),
    "blocks": (lambda: ops.conv2d(1, 7, 5, 6, 9, 3, 3, padding=1, layout="NCHW8c"), ("W",)),
    "winograd": (lambda: ops.conv2d(1, 16, 6, 7, 17, 3, 3, padding=1), ("W",)),
    "depthwise": (lambda: ops.depthwise_conv2d(1, 9, 7, 9, 3, 3, padding=1, layout="NHWC"), ()),
    "pool": (lambda: ops.pool2d("avg", 1, 5, 7, 9, 3, 2, 2, (1, 0, 1, 1), count_include_pad=False), ()),
    "softmax": (lambda: ops.softmax((5, 37)), ()),
    "columns": (lambda: ops.softmax((13, 21), axis=0, dtype="float16"), ()),
    "norm": (lambda: ops.layer_norm((3, 45)), ()),
    "reduce": (lambda: ops.reduce("max", (7, 19, 3), axes=(1,)), ()),
    "argmax": (lambda: ops.reduce("argmax", (9, 13), axes=(1,)), ()),
    "bytes": (lambda: ops.matmul(5, 18, 14, dtype="int8"), ("B",)),
    "transposed": (lambda: ops.from_blocked(1, 13, 5, 7, block=8), ()),
}


def faults_of(p, cores=2):
    module, arguments, _ = lower_module(p, cores)
    return faults(module, {a.name: a.role for a in arguments})


@pytest.mark.parametrize("name", OPERATORS)
def test_programs_stay_inside_their_buffers(name):
    make, constants = OPERATORS[name]
    found = roller.construct(make(), SPEC, options=ConstructOptions(top_k=60, constants=constants))
    different = {(c.program.structure, c.program.staged, c.program.vector_axis): c.program for c in reversed(found)}
    for p in list(different.values())[:2]:
        assert not faults_of(p), str(p)


def test_an_access_beyond_a_buffer_on_the_stack_is_seen(monkeypatch):
    right = roller.templates.cpu.rows.emit_reduce.declare_buffer
    short = lambda name, shape, *a, **k: right(name, tuple(max(1, x - 1) for x in shape), *a, **k)  # noqa: E731
    p = program(canonical(ops.reduce("sum", (3, 40), axes=(1,))), "rows", {"d1": 16}, {"d0": 1}, "d1")
    assert not faults_of(p)
    monkeypatch.setattr(roller.templates.cpu.rows.emit_reduce, "declare_buffer", short)
    assert "read acc[T.Ramp(48, 1, 16)]: element 63 of 63" in faults_of(p)


def loops(body):
    """Return the faults of a kernel that stores four elements of ``Y`` in four tasks."""
    y, kept = declare_buffer("Y", (4,), "float32", private=False), declare_buffer("kept", (4,), "float32")
    parts = (loop if isinstance(loop, tirx.Stmt) else LoopBuilder().loop(4, loop, "parallel") for loop in body(y, kept))
    module = build_library.module_of_functions({"main": ([y], tirx.SeqStmt([allocate_buffer(kept), *parts]))})
    return faults(module, {"Y": "output"})


def test_reads_before_writes_and_of_other_tasks_are_seen():
    one, store, load = tirx.const(1, "float32"), tirx.BufferStore, tirx.BufferLoad

    def filled(kept):
        return lambda i: store(kept, one, [i])

    assert loops(lambda y, kept: [filled(kept), lambda i: store(y, load(kept, [i]), [i])]) == []
    unwritten = loops(lambda y, kept: [lambda i: store(y, load(kept, [i]), [i])])
    assert unwritten == ["read kept[i_0]: reads element 0, which nothing has written"]
    (race,) = loops(lambda y, kept: [lambda i: tirx.SeqStmt([store(y, one, [i]), store(y, load(y, [i // 2]), [i])])])
    assert "reads element 0, which another task writes" in race
    assert loops(lambda y, kept: [store(y, one, [int32_index(3)])]) == ["Y: 3 elements are not written"]


@pytest.fixture(scope="module")
def kernels_of_columns():
    """Kernels of a row softmax over a range of columns, each with its code, which is not compiled."""
    points = [{"columns": n} for n in (2, 11, 20, 51, 90, 150, 200)]
    expr = SymbolicExpr.of([ops.softmax((2, p["columns"])) for p in points], points)
    own = relevant_sizes(expr, points, SizeBox({"columns": (1, 200)}), ConstructOptions())
    several, _ = construct_symbolic_programs(SearchRequest(own), points[1:5:3], SPEC, ConstructOptions(), 2)
    kernels, modules = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_library, "build_library", lambda module, *_, **__: modules.append(module) or b"")
        for p in several:
            with contextlib.suppress(BuildError):  # its code differs from size to size
                kernels.append(build_symbolic_kernel(p, own.expression, own.box, SPEC))
    return list(zip(kernels, modules, strict=True))


def test_kernels_of_ranges_stay_inside_at_every_length_they_take(kernels_of_columns):
    outside = 0
    for kernel, module in kernels_of_columns:
        roles = {a.name: a.role for a in kernel.artifact.arguments}
        for columns in (1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65):
            sizes = {"columns": columns}
            if kernel.takes(sizes):
                assert not faults(module, roles, sizes), f"{kernel.program.program} at {sizes}"
            elif replace(kernel, shortest=()).takes(sizes):
                outside += bool(faults(module, roles, sizes))
    assert outside, "lengths shorter than a tile of a later stage"
