"""Sessions against the oracle of programs, and what they promise to callers."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import gc
import multiprocessing
import os
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest

from roller.artifact import KernelArtifact
from roller.errors import LaunchError, ModelError
from roller.models.graph.memory_plan import plan_memory
from roller.models.session.start_session import start_session
from roller.ops import matmul
from roller.templates.cpu.emit import lower_cpu_program
from roller.templates.cpu.emit.build_library import build_library
from roller_runtime.cpu.threads import processors
from roller_runtime.plan.program_steps import Call, Foreign, Join, KernelSource, ParallelGroup, Program, Run
from roller_runtime.session import packed_constants
from roller_runtime.session.cpu_session import Session
from tests.models.session import programs
from tests.models.session.reference import evaluate_program

CASES = {
    "mlp": programs.mlp, "dense": programs.dense_block, "dense, batch 2": lambda: programs.dense_block(2),
    "lanes": programs.lanes, "mixed": programs.mixed, "foreign": programs.with_foreign,
}  # fmt: skip


def session_of(program: Program, **options) -> Session:
    return start_session(plan_memory(program), programs.kernels(program), cores=2, **options)


def poison(session: Session) -> None:
    """Fill the arenas of waiting frames with NaN: what is read before it is written shows."""
    for frame in session._frames:
        frame.arena[:] = 0xFF


@pytest.fixture(scope="module", params=[True, False], ids=["native", "python"])
def native(request) -> bool:
    return request.param


@pytest.fixture(scope="module", params=CASES)
def case(request, native) -> tuple[Program, Session]:
    program = CASES[request.param]()
    return program, session_of(program, native=native)


@pytest.mark.parametrize("nbytes", [64, 130, 1000])
def test_constants_that_are_mapped_are_copied_whole(nbytes, tmp_path, monkeypatch):
    monkeypatch.setattr(packed_constants, "_PART_BYTES", 64)
    whole = np.random.default_rng(0).integers(0, 256, nbytes + 3, np.uint8)
    (tmp_path / "weights").write_bytes(whole.tobytes())
    mapped = np.memmap(tmp_path / "weights", np.float16, "r", 3, (nbytes // 2,))  # not aligned either
    copied = packed_constants._make_readable(mapped)
    (tmp_path / "weights").write_bytes(bytes(nbytes + 3))
    assert type(copied) is np.ndarray and copied.flags.aligned and copied.dtype == np.float16
    assert copied.tobytes() == whole[3:].tobytes()


@pytest.mark.parametrize("tasks", [3, 7, 1000])
@pytest.mark.parametrize("make", [programs.dense_block, programs.mixed, programs.lanes])
def test_loops_may_be_cut_into_any_number_of_tasks(make, tasks, monkeypatch):
    program = make()
    monkeypatch.setattr(
        "roller_runtime.session.native_frame.count_tasks_of_loop", lambda _extent, _threads, _seconds: tasks
    )
    session, fed = session_of(program), programs.feeds(program)
    for name, array in evaluate_program(program, fed).items():
        np.testing.assert_allclose(session.run(fed)[name], array, rtol=1e-4, atol=1e-5)


def test_every_parallel_loop_of_a_kernel_has_its_number_of_tasks(monkeypatch):
    expression = matmul(512, 512, 512)
    ends = {"x": (512, 512), "w": (512, 512)}
    steps = [programs.run("mm", ["x", "w"], "y")]
    big = programs.program(steps, ends, ["y"], {"y": (512, 512)}, {"mm": KernelSource(expression)})
    monkeypatch.setattr(
        "roller_runtime.session.native_frame.count_tasks_of_loop", lambda extent, _threads, _seconds: 10 * extent
    )
    session = session_of(big)
    code = session.kernels["mm"].code
    assert code.parallel and len(code.tasks) >= 1
    row = session._tables.steps[0]
    found = np.ctypeslib.as_array((ctypes.c_int64 * int(row["cut_count"])).from_address(int(row["cuts"])))
    assert found.tolist() == [10 * n for n in code.tasks]
    x = programs.random(0, 512, 512)
    np.testing.assert_allclose(session.run(x, x), x @ x, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def mlp() -> Session:
    return session_of(programs.mlp())


@pytest.fixture(scope="module")
def mixed() -> Session:
    return session_of(programs.mixed())


def test_outputs_are_those_of_the_oracle(case):
    program, session = case
    for seed in range(3):
        poison(session)
        fed = programs.feeds(program, seed)
        wanted, found = evaluate_program(program, fed), session.run(fed)
        assert list(found) == list(dict.fromkeys(program.outputs))
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_what_is_fed_decides_what_comes_back(mlp, mixed):
    x = programs.random(0, 4, 48)
    wanted = mlp.run({"x": x})["h5"]
    alone, (listed,) = mlp.run(x), mlp.run(None, {"x": x})
    np.testing.assert_array_equal(alone, wanted)
    np.testing.assert_array_equal(listed, wanted)
    y = programs.random(0, 3, 4)
    every = mixed.run(y)
    assert isinstance(every, tuple)
    assert len(every) == 6
    chosen = mixed.run(["t", "x"], {"x": y}, None)
    assert isinstance(chosen, list)
    np.testing.assert_array_equal(chosen[0], every[4])
    np.testing.assert_array_equal(chosen[1], y)
    assert len(mixed.run([], {"x": y})) == 6


def test_inputs_and_outputs_describe_themselves(mixed):
    (x,) = mixed.get_inputs()
    assert (x.name, x.shape, x.dtype, x.type) == ("x", (3, 4), "float32", "tensor(float)")
    assert [d.name for d in mixed.get_outputs()] == ["flat", "x", "tail", "table", "t", "t"]
    assert "x [3, 4] -> flat [12]" in repr(mixed)


def test_no_output_shares_memory_with_an_input_a_constant_or_another_output(mixed):
    x = programs.random(0, 3, 4)
    first, second = mixed.run(x), mixed.run(x)
    held = [x, *mixed.constants.arrays.values(), *first, *second]
    for n, a in enumerate(held):
        assert not any(np.may_share_memory(a, b) for b in held[n + 1 :])


def test_results_are_the_callers_to_keep(mlp):
    x = programs.random(0, 4, 48)
    first = mlp.run(x)
    before = first.copy()
    mlp.run(-x)
    np.testing.assert_array_equal(first, before)


class Exported:
    """An array of another library, that NumPy sees through DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_strided_and_read_only_ones_are_taken(mlp):
    x = programs.random(0, 4, 48)
    wanted = mlp.run(x)
    wide = np.zeros((4, 96), np.float32)
    wide[:, ::2] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    for fed in (Exported(x), wide[:, ::2], fixed, np.asfortranarray(x)):
        np.testing.assert_array_equal(mlp.run(fed), wanted)


def test_outputs_are_written_where_out_says(mlp, mixed):
    x = programs.random(0, 4, 48)
    out = np.full((4, 48), np.nan, np.float32)
    assert mlp.run(x, out=out) is out
    np.testing.assert_array_equal(out, mlp.run(x))
    y, tail = programs.random(0, 3, 4), np.empty(6, np.float32)
    found = mixed.run({"x": y}, out={"tail": tail})
    assert found["tail"] is tail
    np.testing.assert_array_equal(tail, found["flat"][6:])


def test_wrong_feeds_are_refused_by_name(mlp, mixed):
    x = programs.random(0, 4, 48)
    for fed, match in (
        ((), r"expected 1 array \('x'\), got 0"),
        ((x, x), r"expected 1 array \('x'\), got 2\. Call run\("),
        (("h5", {"x": x}), r"run\(\[output names\], \{name: array\}\)"),
        (({},), "got none for 'x'"),
        (({"x": x, "xs": x},), "'xs' is not an input; did you mean 'x'"),
        ((x[:3],), r"argument 'x': expected shape \(4, 48\), got \(3, 48\)"),
        ((x.astype(np.float64),), "argument 'x': expected dtype float32, got float64"),
        (([[1.0]],), "argument 'x': expected a NumPy or DLPack array, got list"),
        ((["h6"], {"x": x}), r"'h6' is not an output\. Outputs are 'h5'"),
        ((None, {"x": x}, {"level": 3}), "no run options"),
    ):
        with pytest.raises(LaunchError, match=match):
            mlp.run(*fed)
    y = programs.random(0, 3, 4)
    two = np.empty(24, np.float32)
    for out, match in (
        (x, r"'h5' overlaps 'x'"),
        (np.empty((4, 48)), "expected dtype float32"),
        ([x, x], "expected 1 array, got 2"),
        ({"h9": x}, "'h9' is not an output"),
        (np.empty((48, 4), np.float32).T, "expected a C-contiguous array"),
    ):
        with pytest.raises(LaunchError, match=match):
            mlp.run(x, out=out)
    with pytest.raises(LaunchError, match="'tail' overlaps 'flat'"):
        mixed.run(y, out={"flat": two[:12], "tail": two[8:14]})
    np.testing.assert_array_equal(mlp.run(x), mlp.run(x))  # nothing was lost


def test_a_function_that_refuses_its_inputs_is_one_clear_error_and_the_session_goes_on(native):
    program = programs.mixed()
    asked = replace(program.values["ids"], name="wanted")
    steps = tuple(
        Call("gather", ("table", "wanted"), s.outputs, s.attributes, s.label) if isinstance(s, Call) else s
        for s in program.steps
    )
    program = replace(program, inputs=("x", "wanted"), values={**program.values, "wanted": asked}, steps=steps)
    session = session_of(program, native=native)
    x = programs.random(0, 3, 4)
    with pytest.raises(LaunchError, match="gather: indices: expected -5 to 4, got 0 to 9"):
        session.run(x, np.array([0, 9]))
    np.testing.assert_array_equal(session.run(x, np.array([0, 4]))[0], np.maximum(x, 0).reshape(-1))


def test_a_runtime_that_is_not_there_or_refuses_is_named(monkeypatch):
    program = programs.with_foreign()
    found, kernels, x = plan_memory(program), programs.kernels(program), programs.random(0, 3, 4)
    for change, match in (
        ({"model": b"nonsense"}, "sign, sinh: onnxruntime refuses the subgraph"),
        ({"runtime": "tensorflow"}, "no runtime 'tensorflow' is known"),
    ):
        steps = tuple(replace(s, **change) if isinstance(s, Foreign) else s for s in found.program.steps)
        session = start_session(replace(found, program=replace(found.program, steps=steps)), kernels, cores=2)
        with pytest.raises(LaunchError, match=match):
            session.run(x)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(LaunchError, match="expected the package onnxruntime, which computes them"):
        start_session(found, kernels, cores=2).run(x)


def test_a_kernel_that_refuses_its_arrays_says_why(native, monkeypatch):
    """Kernels that look at their arrays, as those of ranges do, and disagree with the plan, in a lane and outside."""
    monkeypatch.setattr(
        lower_cpu_program, "build_library", lambda *a, **told: build_library(*a, **{**told, "checked": True})
    )
    monkeypatch.setattr(programs, "built", functools.cache(programs.built.__wrapped__))  # these are not kept
    program = programs.lanes()
    session = session_of(program, native=native)
    for index in (0, 1):
        steps = list(session.steps)
        bound = steps[0] if index == 0 else steps[1].lanes[1][1]
        operands = (replace(bound.operands[0], shape=(2, 60)), *bound.operands[1:])
        wrong = replace(bound, operands=operands)
        if index == 0:
            steps[0] = wrong
        else:
            lane = (steps[1].lanes[1][0], wrong, steps[1].lanes[1][2])
            steps[1] = replace(steps[1], lanes=(steps[1].lanes[0], lane))
        broken = session_of(program, native=native)
        broken._bind_and_allocate(tuple(steps))
        with pytest.raises(Exception, match=r"(?i)shape|mismatch"):
            broken.run(programs.feeds(program))


def test_threads_get_frames_of_their_own(case):
    program, session = case
    fed = [programs.feeds(program, seed) for seed in range(6)]
    wanted = [session.run(f) for f in fed]

    def work(seed: int) -> bool:
        found = session.run(fed[seed % 6])
        return all(np.array_equal(found[n], wanted[seed % 6][n]) for n in found)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(120)))
    assert 1 <= len(session._frames) <= max(2, len(processors()))


def _in_child(session: Session, fed, pipe) -> None:
    pipe.send([a.tobytes() for a in session.run(fed).values()])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads: what is tested
def test_a_forked_process_goes_on_with_the_session():
    program = programs.lanes()
    session, fed = session_of(program), programs.feeds(program)
    wanted = [a.tobytes() for a in session.run(fed).values()]
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(session, fed, theirs))
    child.start()
    assert ours.poll(30)
    assert ours.recv() == wanted
    child.join(30)
    assert child.exitcode == 0
    assert [a.tobytes() for a in session.run(fed).values()] == wanted


def test_constants_that_are_read_packed_only_are_let_go(mlp):
    program = programs.mlp()
    weights = [weakref.ref(a) for a in program.constants.values()]
    session = session_of(program)
    assert not session.constants.arrays
    assert session.constants.nbytes == sum(w().nbytes for w in weights)
    del program
    gc.collect()
    assert not any(w() is not None for w in weights)


def test_runs_that_pack_the_same_constant_by_the_same_kernel_share_the_panel():
    program = programs.mlp()
    steps = [replace(s, inputs=(s.inputs[0], "w0")) if "w1" in s.inputs else s for s in program.steps]
    session = session_of(replace(program, steps=tuple(steps)))
    assert set(session.constants.panels) == {("matmul", ("w0",)), ("matmul", ("w2",))}


def test_constants_can_be_let_go_while_others_are_packed():
    """Each is gone when the next one is packed, also where the caller still holds the plan."""
    program = programs.mlp()
    found, wanted = plan_memory(program), evaluate_program(program, programs.feeds(program))["h5"]
    session = start_session(found, programs.kernels(program), cores=2, consume=True)
    assert not found.program.constants
    np.testing.assert_allclose(session.run(programs.feeds(program))["h5"], wanted, rtol=1e-4, atol=1e-5)
    mixed = plan_memory(programs.mixed())
    start_session(mixed, programs.kernels(programs.mixed()), cores=2, consume=True)
    assert set(mixed.program.constants) == {"table", "ids"}  # read as they are


def test_what_does_not_fit_is_refused_before_anything_runs():
    program = programs.mlp()
    found, kernels = plan_memory(program), programs.kernels(program)
    with pytest.raises(ModelError, match="no artifact for its kernel 'relu'"):
        start_session(found, {"matmul": kernels["matmul"]}, cores=2)
    other = programs.kernels(programs.mlp(rows=5))["relu"]
    with pytest.raises(ModelError, match="has 768 bytes, the kernel takes 960"):
        start_session(found, {**kernels, "relu": other}, cores=2)
    with pytest.raises(ModelError, match="cores: expected at least 1, got 0"):
        start_session(found, kernels, cores=0)
    computed = replace(program, steps=tuple(
        replace(s, inputs=(s.inputs[0], "x")) if s.kernel == "matmul" else s for s in program.steps
    ), values={**program.values, "x": program.values["w0"]})  # fmt: skip
    with pytest.raises(ModelError, match="a kernel packs it once, so it must be a constant"):
        start_session(plan_memory(computed), kernels, cores=2)
    gpu: KernelArtifact = replace(kernels["relu"], language="cuda")
    with pytest.raises(LaunchError, match="expected a CPU kernel, got one of language 'cuda'"):
        start_session(found, {**kernels, "relu": gpu}, cores=2)


def test_lanes_of_kernels_that_wake_threads_run_in_a_row():
    expression = matmul(256, 256, 256)
    wide = (256, 256)
    lanes = tuple((Run(f"m{n}", "m", ("x", "x"), (f"y{n}",)),) for n in range(2))
    program = programs.program(
        [ParallelGroup(lanes)],
        {"x": wide},
        ["y0", "y1"],
        dict.fromkeys(("y0", "y1"), wide),
        {"m": KernelSource(expression)},
    )
    session = session_of(program)
    assert session.kernels["m"].code.parallel
    assert not session.steps[0].apart
    x = programs.random(0, *wide)
    for found in session.run(x):
        np.testing.assert_allclose(found, x @ x, rtol=1e-3, atol=1e-3)


def test_a_model_of_small_kernels_starts_no_threads(mlp):
    assert not mlp._wakes
    assert session_of(programs.lanes())._wakes


def test_large_copies_are_spread_over_threads():
    """Joins within rows, and one long row: 1.5 MB each."""
    for shape, axis in (((3, 2, 65536), 1), ((1, 6, 65536), 1)):
        joined = (shape[0], 2 * shape[1], shape[2])
        program = programs.program([Join(("x", "x"), "y", axis)], {"x": shape}, ["y"], {"y": joined})
        session = session_of(program)
        assert session._wakes
        x = programs.random(0, *shape)
        np.testing.assert_array_equal(session.run(x), np.concatenate([x, x], axis))


def test_a_profile_names_every_step(case):
    program, session = case
    found = session.profile(repeats=3)
    top = [s for s in found.steps if s.lane is None]
    assert sum(s.share for s in top) == pytest.approx(1)
    # whole calls and steps are timed in different runs, so a disturbance may set them apart, a wrong unit by a thousand
    assert 0 < found.best_s <= found.measured_s and 100 * found.measured_s > sum(s.measured_s for s in top)
    runs = [s for s in found.steps if s.kind == "kernel"]
    assert len(runs) == sum(1 for s in programs.flat(program.steps) if isinstance(s, Run))
    assert all(s.measured_s > 0 and s.nodes and s.kernel in program.kernels for s in runs)
    assert found.to_dict()["steps"][0]["label"] == found.steps[0].label
    assert top[0].label in str(found) and "predicted - us" not in str(found)
    with pytest.raises(LaunchError, match="'repeats': expected at least 1, got 0"):
        session.profile(repeats=0)
    lanes = {s.lane for s in found.steps}
    assert lanes == ({None, 0, 1} if any(isinstance(s, ParallelGroup) for s in program.steps) else {None})
