"""Which CPU kernels hand out tasks: parallel loops only where there is more than one, and somebody to take it."""

import pytest

from roller import ops
from roller.te.compat import tirx
from roller.templates.cpu.emit.lower_cpu_program import lower_module
from roller.templates.cpu.emit.tir_loop_constructors import (
    LoopBuilder,
    int32_index,
    is_parallel,
    sequence_of_statements,
    serialize_loops,
)
from tests.codegen.cpu_programs import assert_right, canonical, kernel, program

MATMUL = ops.matmul(24, 40, 16)
REGISTER = {"i": 4, "j": 16}


def tiled(task, staged=("A", "B")):
    return program(canonical(MATMUL), "tiled", REGISTER, task, "j", staged=staged)


def body(prog, cores=2):
    module, *_ = lower_module(prog, cores)
    return module["main"].body


def test_one_task_packs_and_computes_without_parallel_loops():
    alone = tiled({"i": 24, "j": 48})
    assert not is_parallel(body(alone))
    assert_right(MATMUL, alone)


def test_several_tasks_are_parallel():
    shared = tiled({"i": 8, "j": 16})
    assert is_parallel(body(shared))
    assert kernel(MATMUL, shared).artifact.target["parallel"] is True
    assert_right(MATMUL, shared)


@pytest.mark.parametrize(
    ("expr", "prog"),
    [
        (MATMUL, tiled({"i": 8, "j": 16})),
        (ops.reduce("sum", (1 << 17,), (0,)), None),
        (ops.softmax((40, 30)), None),
    ],
    ids=["tiled", "split reduction", "rows"],
)
def test_on_one_core_no_loop_is_parallel(expr, prog):
    if prog is None:
        e = canonical(expr)
        prog = program(e, "rows", vector=e.axes[-1].name)
    assert is_parallel(body(prog, 2))
    assert not is_parallel(body(prog, 1))
    assert kernel(expr, prog, cores=1).artifact.target["parallel"] is False
    assert_right(expr, prog, cores=1)


@pytest.mark.parametrize("kind", ["serial", "parallel", "vector", "unroll"])
def test_a_loop_of_one_iteration_is_dropped_whatever_its_kind(kind):
    nothing = tirx.Evaluate(int32_index(0))
    assert LoopBuilder().loop(1, lambda i: nothing, kind) is nothing
    assert isinstance(LoopBuilder().loop(2, lambda i: nothing, kind), tirx.For)


def test_serial_keeps_every_other_loop():
    nest = LoopBuilder()
    leaf = lambda _: tirx.Evaluate(int32_index(1))  # noqa: E731
    inner = lambda _: sequence_of_statements(nest.loop(4, leaf, "unroll"), nest.loop(8, leaf, "vector"))  # noqa: E731
    outer = nest.loop(3, inner, "parallel")
    alone = serialize_loops(outer)
    assert is_parallel(outer) and not is_parallel(alone)
    assert alone.kind == tirx.ForKind.SERIAL and int(alone.extent) == 3
    assert [loop.kind for loop in alone.body] == [tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED]
