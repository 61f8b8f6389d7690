"""Boxes of a task on a CPU: rows of known length are copied in vectors, and every copy is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller import ops
from roller.expr.canonical import fuse_axes
from roller.te.compat import structural_walk, tirx
from roller.templates.cpu.emit.build_library import ENTRY
from roller.templates.cpu.emit.generalize_sizes import module_as_tir_text
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder, int32_index
from roller.templates.cpu.tiled.emit_box_copy import emit_elements
from tests.codegen.cpu_programs import assert_right, program
from tests.offenders import every

_BOX = "X_packed0"


def _pool(channels, layout, dtype="float32"):
    return ops.pool2d("max", 1, channels, 12, 11, 3, 3, 2, 1, layout=layout, dtype=dtype)


def _program(expr):
    """Return a program with a box of all channels of a block, or of all, for each task of one row of outputs."""
    form = fuse_axes(expr)
    vector = next(n for n in ("ci", "c") if n in form.anchor.extents)
    task = {"ho": 1, vector: form.anchor.extents[vector]}
    return program(form, "tiled", {vector: 16, "wo": 3}, task, vector, staged=("X",))


def _widths_of_box_stores(made):
    """Return the numbers of lanes with which a kernel writes its box; 1 outside vector loops."""
    body = lower_module(made, 1)[0][ENTRY].body
    inside, found = {}, {}

    def loop(n):
        if n.kind == tirx.ForKind.VECTORIZED:
            structural_walk(n.body, (tirx.BufferStore, lambda s: inside.update({s: int(n.extent)})))

    def store(s):
        if s.buffer.name == _BOX:
            found[s] = inside.get(s, 1)

    structural_walk(body, (tirx.For, loop))
    structural_walk(body, (tirx.BufferStore, store))
    return set(found.values())


@every("channels, layout, dtype, widths", [
    (32, "NCHW16c", "float32", {16}),
    (32, "NCHW8c", "float32", {8}),
    (12, "NHWC", "float32", {4, 8, 16}),  # a row is 12 channels, two overlapping vectors of 8, and 4 lanes beyond them
    (24, "NHWC", "float32", {16}),
    (64, "NHWC", "int8", {64}),
])  # fmt: skip
def test_rows_of_known_length_are_copied_in_vectors(channels, layout, dtype, widths):
    # LLVM would unroll a loop over a short row and copy several rows at once, with gathers and scatters.
    assert _widths_of_box_stores(_program(_pool(channels, layout, dtype))) == widths


def test_rows_whose_length_depends_on_the_task_are_loops():
    expr = ops.pool2d("max", 1, 2, 12, 64, 3, 3, 1, 1)
    made = program(fuse_axes(expr), "tiled", {"ho": 3, "wo": 16}, {"ho": 3, "wo": 16}, "wo", staged=("X",))
    assert 1 in _widths_of_box_stores(made)


def test_code_for_a_range_does_not_depend_on_the_length_of_rows():
    shapes = []
    for width in (17, 24, 31, 48):
        form = fuse_axes(ops.pool2d("max", 1, 2, 12, width, 3, 3, 1, 1))
        made = program(form, "tiled", {"wo": 16}, {"ho": 1, "wo": width}, "wo", staged=("X",))
        module = lower_module(replace(made, open_axes=("wo",)), 1)[0]
        shapes.append(module_as_tir_text(module, {"wo": width}).shape)
    assert shapes[1:] == shapes[:-1]  # kernels for ranges are generalised from code for a few sizes


@every("count, firsts", [
    (1, [0]), (3, [0, 1]), (8, [0]), (12, [0, 4]), (16, [0]), (24, [0, 8]), (31, [0, 15]), (40, [0, 16, 24]),
])  # fmt: skip
def test_vectors_cover_a_run_exactly(count, firsts):
    written = []

    def element(i):
        written.append(i)
        return tirx.Evaluate(int32_index(0))

    emit_elements(_Unrolled(), count, 16, element)
    width = max(w for w in (1, 2, 4, 8, 16) if w <= count)
    assert written == [first + lane for first in firsts for lane in range(width)]
    assert set(written) == set(range(count))


class _Unrolled:
    """Loops that run while they are built."""

    def loop(self, extent, body, kind="serial", name="i"):
        del kind, name
        return [body(n) for n in range(extent)][-1]


def test_an_empty_run_is_no_statement():
    assert emit_elements(LoopBuilder(), int32_index(0), 16, lambda i: pytest.fail("no element")) is None


@pytest.mark.parametrize(("channels", "layout", "dtype"), [
    (32, "NCHW16c", "float32"), (24, "NCHW8c", "float32"), (3, "NHWC", "float32"), (12, "NHWC", "float32"),
    (24, "NHWC", "float32"), (17, "NHWC", "float16"), (17, "NHWC", "bfloat16"), (40, "NHWC", "float8_e4m3fn"),
    (40, "NHWC", "int8"), (17, "NHWC", "float64"),
])  # fmt: skip
def test_boxes_are_right(channels, layout, dtype):
    expr = _pool(channels, layout, dtype)
    assert_right(expr, _program(expr))
