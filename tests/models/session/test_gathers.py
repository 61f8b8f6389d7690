"""Gathers by positions of a call: steps of the native runner, equal to NumPy's and refused as by Python."""

import itertools

import numpy as np
import pytest

from roller.errors import LaunchError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.start_session import start_session
from roller_runtime.core.dtypes import numpy_dtype
from roller_runtime.plan.program_steps import Call, Program, Value
from roller_runtime.session.array_functions import FUNCTIONS
from roller_runtime.session.gather_numbers import numbers_of_gather
from roller_runtime.session.plan_binding import SHARED_COPY_BYTES, may_run_on_other_threads
from tests.offenders import every

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def session(function, attributes, data, positions, constants=(), native=True, cores=2):
    """A session of one gather, whose data or positions may be constants."""
    arrays = {"data": data, "positions": positions}
    result = FUNCTIONS[function](np, [data, np.zeros_like(positions)], attributes)[0] if data.size else None
    shape = result.shape if result is not None else (*positions.shape, *data.shape[1:])
    values = {n: Value(n, a.shape, a.dtype.name) for n, a in arrays.items()}
    values |= {n: Value(n, shape, data.dtype.name) for n in ("rows", "again")}
    steps = (
        Call(function, ("data", "positions"), ("rows",), attributes, "embedding"),
        Call("bit_cast", ("rows",), ("again",), {"dtype": data.dtype.name}, "copy"),
    )
    inputs = tuple(n for n in arrays if n not in constants)
    held = {n: a for n, a in arrays.items() if n in constants}
    program = Program("gathers", inputs, ("again",), values, held, steps)
    return start_session(plan_memory(program), {}, cores=cores, native=native)


def drawn(rng, shape, dtype):
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(numpy_dtype(dtype))


def random_case(rng):
    """A function, its attributes, and shapes of data and positions, with dimensions from 1."""
    function = rng.choice(["gather", "gather_elements", "gather_nd"])
    shape = tuple(rng.integers(1, 6, rng.integers(1, 5)).tolist())
    axis = int(rng.integers(len(shape)))
    if function == "gather":
        return function, {"axis": axis}, shape, tuple(rng.integers(1, 5, rng.integers(0, 4)).tolist()), shape[axis]
    if function == "gather_elements":
        positions = list(shape)
        positions[axis] = int(rng.integers(1, 7))
        if axis:
            positions[0] = int(rng.integers(1, shape[0] + 1))
        return function, {"axis": axis}, shape, tuple(positions), shape[axis]
    batch = int(rng.integers(len(shape)))
    depth = int(rng.integers(1, len(shape) - batch + 1))
    between = tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
    return function, {"batch_dims": batch}, shape, (*shape[:batch], *between, depth), shape[batch : batch + depth]


def check_against_python(seed):
    rng = np.random.default_rng(seed)
    function, attributes, shape, at, sizes = random_case(rng)
    data = drawn(rng, shape, DTYPES[seed % len(DTYPES)])
    positions = rng.integers(-np.array(sizes), np.array(sizes), at).astype(("int64", "int32")[seed // 2 % 2])
    constants = [(), ("data",), ("positions",)][seed % 3]
    feeds = {n: a for n, a in (("data", data), ("positions", positions)) if n not in constants}
    (wanted,) = FUNCTIONS[function](np, [data, positions], attributes)
    made = session(function, attributes, data, positions, constants)
    assert numbers_of_gather(function, attributes, shape, at, "int64", 1) is not None
    np.testing.assert_array_equal(made.run(None, feeds)[0], wanted)
    np.testing.assert_array_equal(
        session(function, attributes, data, positions, constants, native=False).run(None, feeds)[0], wanted
    )


@every("seed", range(16))
def test_results_are_those_of_python(seed):
    check_against_python(seed)


@pytest.mark.slow
def test_more_results_are_those_of_python():
    for seed in range(16, 316):
        check_against_python(seed)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("wrong", [7, -8, 1 << 30, -(1 << 31)])
@pytest.mark.parametrize("rows", [3, SHARED_COPY_BYTES // 64])
def test_positions_outside_are_refused_in_the_same_words(wrong, dtype, rows):
    data, positions = np.zeros((7, 16), np.float32), np.zeros(rows, dtype)
    positions[-1] = wrong
    said = []
    for native in (True, False):
        made = session("gather", {"axis": 0}, data, positions, native=native)
        with pytest.raises(LaunchError, match=r"embedding: indices: expected -7 to 6") as refused:
            made.run(None, {"data": data, "positions": positions})
        said.append(str(refused.value))
        positions_then = np.zeros_like(positions)
        assert not made.run(None, {"data": data, "positions": positions_then})[0].any(), "the next call is right"
    assert said[0] == said[1]


def test_a_native_step_stays_in_one_run_of_the_runner():
    data, positions = np.zeros((7, 16), np.float32), np.zeros(3, np.int64)
    made = session("gather", {"axis": 0}, data, positions)
    assert [isinstance(s, tuple) for s in made._tables.segments] == [True, False]
    assert not may_run_on_other_threads(made.steps[0])


def test_large_gathers_use_all_threads():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((100, 64)).astype(np.float32)
    positions = rng.integers(-100, 100, SHARED_COPY_BYTES // 256 + 5)
    made = session("gather", {"axis": 0}, data, positions)
    assert may_run_on_other_threads(made.steps[0])
    np.testing.assert_array_equal(made.run(None, {"data": data, "positions": positions})[0], data[positions])
    elements = rng.integers(-64, 64, (100, 4000))
    made = session("gather_elements", {"axis": 1}, data, elements)
    wanted = np.take_along_axis(data, elements, 1)
    np.testing.assert_array_equal(made.run(None, {"data": data, "positions": elements})[0], wanted)


@pytest.mark.parametrize(
    ("data", "positions"), [*itertools.product([(0, 3), (4, 0), (4, 3)], [(0,), (2, 0)]), ((4, 0), (2,))]
)
def test_results_without_elements(data, positions):
    x, at = np.zeros(data, np.float32), np.zeros(positions, np.int64)
    made = session("gather", {"axis": 0}, x, at)
    assert made.run(None, {"data": x, "positions": at})[0].shape == (*positions, data[1])


def test_a_runner_without_gathers_leaves_them_to_python(monkeypatch):
    """As in models saved by earlier versions."""
    from dataclasses import replace

    from roller.models.session import start_session as module

    load = module.load_runner
    monkeypatch.setattr(module, "load_runner", lambda image: replace(load(image), gathers=False))
    data, positions = np.arange(21.0).reshape(7, 3), np.array([1, -1, 6])
    made = session("gather", {"axis": 0}, data, positions)
    assert not any(isinstance(segment, tuple) for segment in made._tables.segments)
    np.testing.assert_array_equal(made.run(None, {"data": data, "positions": positions})[0], data[positions])
