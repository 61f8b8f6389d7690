"""Positions in CPU kernels are 32 bits wide: what reaches beyond them is refused, by name."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from roller import ops
from roller.errors import BuildError
from roller.te.compat import te, tirx
from roller.te.reader import read
from roller.templates.cpu.emit.check_index_overflow import check_index_overflow
from roller.templates.cpu.emit.tir_loop_constructors import LoopBuilder
from tests.codegen.cpu_programs import kernel, program


@pytest.mark.parametrize(("elements", "fits"), [(2**31 - 1, False), (2**31 - 2**20 + 1, False), (2**31 - 2**20, True)])
def test_the_last_elements_must_be_reached_by_the_tile_that_holds_them(elements, fits):
    e = ops.elementwise("relu", (elements,), dtype="int8")
    if fits:
        return check_index_overflow(e)
    with pytest.raises(BuildError, match=f"tensor 'X' .*expected at most 2\\^31 - 2\\^20 elements, got {elements}"):
        check_index_overflow(e)


def test_axes_and_guards_count_too():
    x = te.placeholder((4,), name="X")
    r = te.reduce_axis((0, 2**31 - 5), name="r")
    with pytest.raises(BuildError, match="axis 'r'"):
        check_index_overflow(read([x, te.compute((4,), lambda i: te.sum(x[i] * 1.0 + r * 0.0, axis=r), name="Y")]))
    far = te.compute((50_000,), lambda i: tirx.if_then_else(i * 50_000 < 4, x[i * 50_000], 0.0), name="Y")
    with pytest.raises(BuildError, match="an access of 'X'"):
        check_index_overflow(read([x, far]))


def test_loops_of_more_iterations_are_refused():
    with pytest.raises(BuildError, match="loop 'task': expected fewer than 2\\^31 iterations"):
        LoopBuilder().loop(2**31, lambda i: tirx.Evaluate(i), name="task")


@pytest.mark.parametrize("kind", ["max", "min"])
def test_truth_values_have_a_maximum_and_a_minimum(kind):
    e = ops.reduce(kind, (4, 300), axes=1, dtype="bool")
    x = np.random.default_rng(0).random((4, 300)) < (0.002 if kind == "max" else 0.998)
    made = kernel(e, program(e, "rows"))
    np.testing.assert_array_equal(made(x), x.any(1) if kind == "max" else x.all(1))
