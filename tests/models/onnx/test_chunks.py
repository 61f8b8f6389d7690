"""Products over all steps of a sequence are cut so that layers overlap, and compute the same."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from roller import ops
from roller.hardware import load_spec
from roller.models.graph.coschedule import coschedule_program
from roller.models.graph.recurrent_pipeline_chunks import chunked_variants, restrict_rows
from roller_runtime.plan.program_steps import Join, KernelSource, ParallelGroup, Program, Run, Value, View
from tests.models.session import programs
from tests.models.session.reference import evaluate_program


def layers(count=3, steps=12, batch=2, width=16, pair=False):
    """Return layers that project all steps of the one below at once, then go step after step."""
    constants = {f"w{n}": programs.random(n, width, width) / 4 for n in range(count)}
    shapes = {"x": (steps * batch, width)} | {n: a.shape for n, a in constants.items()}
    made, below = [], "x"
    for n in range(count):
        made.append(Run("projection", "product", (below, f"w{n}"), (f"p{n}",)))
        shapes[f"p{n}"] = (steps * batch, width)
        for t in range(steps):
            first, last = f"x{n}.{t}", f"h{n}.{t - 1}" if t else f"x{n}.{t}"
            size = 4 * batch * width
            crossing = pair and t == steps // 2
            made.append(View(f"p{n}", first, t * size - 4 * crossing))
            made.append(Run("inner", "inner", (last, f"w{n}"), (f"i{n}.{t}",)))
            made.append(Run("cell", "add", (first, f"i{n}.{t}"), (f"h{n}.{t}",)))
            shapes |= dict.fromkeys((first, f"i{n}.{t}", f"h{n}.{t}"), (batch, width))
        below = f"y{n}"
        made.append(Join(tuple(f"h{n}.{t}" for t in range(steps)), below, 0))
        shapes[below] = (steps * batch, width)
    kernels = {"product": KernelSource(ops.matmul(steps * batch, width, width), ("B",)),
               "inner": KernelSource(ops.matmul(batch, width, width), ("B",)),
               "add": KernelSource(ops.elementwise("add", (batch, width)))}  # fmt: skip
    values = {n: Value(n, s) for n, s in shapes.items()}
    return Program("layers", ("x",), (below,), values, constants, tuple(made), kernels)


def joins(program):
    return [s for s in program.steps if isinstance(s, Join)]


def test_chunks_compute_the_same_bit_by_bit():
    program = layers()
    found = chunked_variants(program)
    assert [len(joins(p)) for p in found] == [1 + 2 * 4, 1 + 2 * 12]  # the last layer's is what the model gives
    feeds = {"x": programs.random(7, 24, 16)}
    (wanted,) = evaluate_program(program, feeds).values()
    for variant in found:
        (got,) = evaluate_program(variant, feeds).values()
        np.testing.assert_array_equal(got, wanted)
        assert set(variant.kernels) == {s.kernel for s in variant.steps if isinstance(s, Run)}


def test_layers_overlap_where_that_is_predicted_to_pay():
    program = layers(4, 24, 1, 256)
    spec = load_spec("cpu-avx512").with_overrides({"units": 2})
    found = coschedule_program(program, spec)
    assert any(isinstance(s, ParallelGroup) for s in found.program.steps)
    assert found.together_s < 0.9 * found.serial_s
    serial = Program("", program.inputs, program.outputs, program.values, program.constants, program.steps,
                     program.kernels)  # fmt: skip
    assert found.serial_s == pytest.approx(coschedule_program(serial, spec).serial_s)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: replace(p, outputs=(*p.outputs, "p1", "p2")),  # somebody needs all rows in one piece
        lambda p: replace(p, constants={}),  # rows of another operand would have to be cut too
        lambda p: layers(pair=True),  # a step is read across two sources
        lambda p: layers(count=1),
    ],
    ids=["output", "varying", "crossing", "single"],
)
def test_what_cannot_be_cut_stays_whole(change):
    assert chunked_variants(change(layers())) == []


def test_rows_that_go_their_ways_apart():
    product = restrict_rows(ops.matmul(12, 8, 4), 0, 3)
    assert [t.shape for t in (*product.inputs, *product.output_tensors)] == [(3, 4), (4, 8), (3, 8)]
    a, b = programs.random(0, 12, 4), programs.random(1, 4, 8)
    whole, part = (e.evaluate([x, b])[0] for e, x in ((ops.matmul(12, 8, 4), a), (product, a[:3])))
    np.testing.assert_array_equal(part, whole[:3])
    softmax = restrict_rows(ops.softmax((12, 8), axis=1), 0, 4)
    assert softmax.output_tensors[0].shape == (4, 8)


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        (ops.matmul(12, 8, 12), 1),  # rows of B are what is summed over
        (ops.softmax((12, 8), axis=0), 0),  # every row needs all of them
        (ops.reduce("sum", (12, 12), axes=(0,)), 0),
    ],
)
def test_rows_that_meet(expression, position):
    assert restrict_rows(expression, position, 3) is None


def test_cuts_go_between_sources():
    program = layers(2, 7)
    (only,) = chunked_variants(program)  # seven steps have no other equal parts
    runs = [s for s in only.steps if isinstance(s, Run) and s.label == "projection"]
    assert len(runs) == 1 + 7
    assert len(set(itertools.chain.from_iterable(r.outputs for r in runs))) == len(runs)


def test_a_program_is_cut_for_its_sections_alone():
    program = layers(4, 24, 1, 256)
    spec = load_spec("cpu-avx512").with_overrides({"units": 2})
    costly = spec.with_overrides({"execution.fork_s": 1e-2})  # no section can pay for its start
    assert coschedule_program(program, costly).program is program
