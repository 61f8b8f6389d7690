"""Sections hold what is independent, every step runs once, and nothing is done that is not predicted to pay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roller.models.graph.concurrent_sections import LaneCosts, device_share_kernel_key, schedule_sections
from roller.models.graph.order_steps_for_weight_reuse import (
    bytes_between_reads,
    core_cached_constant_bytes,
    large_constant_per_step,
    order_lane_for_weight_reuse,
    reloaded_constant_bytes,
)
from roller.models.graph.step_dependencies import Dependencies, peak_live_bytes
from roller.ops import matmul
from roller_runtime.plan.program_steps import (
    Copy,
    Join,
    KernelSource,
    ParallelGroup,
    Program,
    Run,
    Value,
    View,
    values_read,
    values_written,
)

SOURCE = KernelSource(matmul(4, 4, 4), ("B",))
#: A kernel that gains little from a second core: what shows is what the fork costs.
SMALL = LaneCosts({"k": 7e-6}, {"k": 9e-6}, sync_s=2e-6, lanes=2, units=1)


def program_of(steps, shape=(8,), inputs=("x",)):
    names = {n for s in steps for n in (*values_read(s), *values_written(s))}
    read = {n for s in steps for n in values_read(s)}
    outputs = tuple(n for s in steps for n in values_written(s) if n not in read)
    values = {n: Value(n, shape) for n in names}
    return Program("p", inputs, outputs, values, {}, tuple(steps), {"k": SOURCE, "big": SOURCE})


def wavefront(layers, steps):
    """Return cells that need the one below and the one before, layer after layer."""
    out = []
    for layer, t in itertools.product(range(layers), range(steps)):
        below = f"h{layer - 1}.{t}" if layer else "x"
        before = f"h{layer}.{t - 1}" if t else "x"
        out.append(Run("cell", "k", (below, before), (f"h{layer}.{t}",)))
    return program_of(out)


def flat(steps):
    return [s for step in steps for s in (itertools.chain(*step.lanes) if isinstance(step, ParallelGroup) else (step,))]


def predicted_s(steps, costs):
    total = 0.0
    whole = {device_share_kernel_key(k, costs.units): s for k, s in costs.share_s.items()}
    for step in steps:
        if isinstance(step, ParallelGroup):
            lanes = [sum(whole[s.kernel] for s in lane if isinstance(s, Run)) for lane in step.lanes]
            total += max(*lanes, 0.0) + costs.sync_s
        elif isinstance(step, Run):
            total += costs.whole_s[step.kernel]
    return total


def assert_valid(before, after):
    """Every step once, what it reads written, lanes independent of each other."""
    assert sorted(w for s in flat(after.steps) for w in values_written(s)) == sorted(
        w for s in before.steps for w in values_written(s)
    )
    made = {w for s in before.steps for w in values_written(s)}
    written: set[str] = set()
    for step in after.steps:
        lanes = step.lanes if isinstance(step, ParallelGroup) else ((step,),)
        seen = []
        for lane in lanes:
            mine: set[str] = set()
            for s in lane:
                assert set(values_read(s)) & made <= written | mine, f"{s} reads what is not there"
                mine.update(values_written(s))
            seen.append(mine)
        written.update(*seen)
    for s in flat(after.steps):
        if isinstance(s, Run):
            assert s.kernel in after.kernels


def test_a_wavefront_of_cells_takes_both_cores():
    before = wavefront(10, 100)
    found = schedule_sections(before, SMALL)
    assert_valid(before, found.program)
    assert found.runs > 950
    assert found.together_s == pytest.approx(predicted_s(found.program.steps, SMALL))
    assert found.serial_s == pytest.approx(1000 * 7e-6)
    # Two lanes of 9 us cells are 4.5 us a cell; filling and draining the wavefront and synchronising cost the rest.
    assert found.together_s < 0.7 * found.serial_s
    assert found.program.kernels[device_share_kernel_key("k", 1)].units == 1


def test_a_chain_and_kernels_that_use_all_cores_stay_as_they_are():
    chain = program_of([Run("", "k", (f"v{i}" if i else "x",), (f"v{i + 1}",)) for i in range(50)])
    assert schedule_sections(chain, SMALL).program is chain
    wide = program_of([Run("", "k", ("x",), (f"v{i}",)) for i in range(50)])
    scales = LaneCosts({"k": 1e-3}, {"k": 1.999e-3}, 2e-6, 2, 1)
    assert schedule_sections(wide, scales).program is wide  # less is predicted than predictions are good for
    bound = LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1, common_s={"k": 7e-6})
    assert schedule_sections(wide, bound).program is wide  # the memory they share is what takes the time
    assert schedule_sections(wide, SMALL).runs == 50


def test_a_big_kernel_runs_alone_beside_small_ones():
    small = [Run("", "k", ("x",), (f"v{i}",)) for i in range(6)]
    before = program_of([Run("", "big", ("x",), ("w",)), *small])
    costs = LaneCosts({"k": 7e-6, "big": 1e-4}, {"k": 9e-6, "big": 1.99e-4}, 2e-6, 2, 1)
    found = schedule_sections(before, costs)
    assert_valid(before, found.program)
    assert Run("", "big", ("x",), ("w",)) in found.program.steps
    assert found.runs == 6
    huge = LaneCosts({"k": 7e-6, "big": 1e-2}, {"k": 9e-6, "big": 1.99e-2}, 2e-6, 2, 1)
    assert schedule_sections(before, huge).program is before  # not worth the kernels it would take


def test_branches_share_a_section_and_meet_in_a_join():
    branches = [Run("", "k", (f"b{b}.{i}" if i else "x",), (f"b{b}.{i + 1}",)) for b in range(2) for i in range(4)]
    steps = [*branches, View("b1.4", "b1.view"), Join(("b0.4", "b1.view"), "y", 0)]
    before = program_of(steps)
    found = schedule_sections(before, SMALL)
    assert_valid(before, found.program)
    assert [type(s) for s in found.program.steps if not isinstance(s, View)] == [ParallelGroup, Join]
    assert found.together_s == pytest.approx(4 * 9e-6 + 2e-6)
    # A branch that is not in lanes at all (no prediction for a share) leaves the other one alone too.
    assert schedule_sections(before, LaneCosts({"k": 7e-6}, {}, 2e-6, 2, 1)).program is before


def test_views_and_copies_follow_their_lane():
    steps = []
    for b in range(2):
        steps += [Run("", "k", ("x",), (f"a{b}",)), View(f"a{b}", f"b{b}", 4),
                  Copy(f"b{b}", f"c{b}", 2, 8), Run("", "k", (f"c{b}",), (f"d{b}",))]  # fmt: skip
    before = program_of(steps)
    found = schedule_sections(before, LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1, bytes_per_s=16e9))
    assert_valid(before, found.program)
    (section,) = found.program.steps
    assert [[type(s) for s in lane] for lane in section.lanes] == [[Run, View, Copy, Run]] * 2
    assert found.together_s == pytest.approx(2 * 9e-6 + 1e-9 + 2e-6)


def test_order_is_not_bought_with_memory():
    before = wavefront(10, 100)
    values = {n: Value(n, (1 << 20,)) for n in before.values}
    heavy = Program("p", before.inputs, before.outputs, values, {}, before.steps, before.kernels)
    found = schedule_sections(heavy, SMALL)
    assert_valid(heavy, found.program)
    assert found.runs > 900
    assert peak_live_bytes(heavy, found.program.steps) <= 1.25 * peak_live_bytes(heavy, heavy.steps)


def test_live_bytes_counts_views_as_what_they_view():
    steps = [Run("", "k", ("x",), ("a",)), View("a", "b"), Run("", "k", ("b",), ("c",)), Run("", "k", ("c",), ("y",))]
    program = program_of(steps)
    assert peak_live_bytes(program, steps) == 2 * 32
    assert Dependencies.of(steps).before == ((), (0,), (1,), (2,))


@st.composite
def dags(draw):
    steps = []
    for i in range(draw(st.integers(1, 30))):
        sources = draw(st.lists(st.integers(-1, i - 1), min_size=1, max_size=3))
        names = tuple("x" if s < 0 else f"v{s}" for s in sources)
        kind = draw(st.integers(0, 9))
        if kind == 0:
            steps.append(View(names[0], f"v{i}"))
        elif kind == 1:
            steps.append(Join(names, f"v{i}", 0))
        else:
            steps.append(Run("", "big" if kind == 2 else "k", names, (f"v{i}",)))
    return program_of(steps)


@given(dags(), st.integers(2, 4), st.floats(0, 2e-5))
@settings(deadline=None, max_examples=60)
def test_any_graph_keeps_its_meaning_and_never_gets_slower(before, lanes, sync_s):
    costs = LaneCosts({"k": 7e-6, "big": 4e-5}, {"k": 9e-6, "big": 7e-5}, sync_s, lanes, 1)
    found = schedule_sections(before, costs)
    assert_valid(before, found.program)
    assert found.together_s <= found.serial_s * (1 + 1e-12)
    assert found.together_s == pytest.approx(predicted_s(found.program.steps, costs))


def test_ten_thousand_steps_keep_their_meaning():
    before = wavefront(20, 500)
    found = schedule_sections(before, LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 4, 1))
    assert_valid(before, found.program)
    assert found.runs > 9000


def test_a_lane_reads_weights_again_while_they_are_at_hand():
    """Products of a layer's inputs first, then its steps; not layer by layer at every step."""
    steps = []
    for layer, t in itertools.product(range(2), range(4)):
        below, before = f"h{layer - 1}.{t}" if layer else "x", f"h{layer}.{t - 1}" if t else "x"
        steps += [Run("", "k", (below, f"W{layer}"), (f"u{layer}.{t}",)),
                  Run("", "k", (f"u{layer}.{t}", before, f"R{layer}"), (f"g{layer}.{t}",)),
                  Run("", "k", (f"g{layer}.{t}",), (f"h{layer}.{t}",))]  # fmt: skip
    program = program_of(steps, shape=(1 << 14,))
    weights = {n: np.zeros(1 << 14, np.float32) for n in ("W0", "R0", "W1", "R1")}
    program = Program("p", ("x",), program.outputs, program.values, weights, program.steps, program.kernels)
    graph, constants = Dependencies.of(steps), large_constant_per_step(program)
    by_time = sorted(range(len(steps)), key=lambda i: (i // 3 % 4, i))
    order = order_lane_for_weight_reuse(by_time, graph, constants)
    assert sorted(order) == list(range(len(steps)))
    seen: set[int] = set()
    for i in order:
        assert set(graph.before[i]) <= seen
        seen.add(i)
    used = [constants[i] for i in order if constants[i] is not None]
    assert [name for name, _ in itertools.groupby(used)] == ["W0", "R0", "W1", "R1"]


def test_weights_that_leave_the_cache_between_steps_are_paid_for():
    names = [f"W{n}" for n in range(4)]
    by_layer = [Run("", "k", (f"v{n}{t - 1}" if t else "x", n), (f"v{n}{t}",)) for n in names for t in range(3)]
    by_time = sorted(by_layer, key=lambda s: s.outputs[0][-1])
    program = program_of(by_layer, shape=(1024,))
    weights = {n: np.zeros(1024, np.float32) for n in names}
    program = Program("p", ("x",), program.outputs, program.values, weights, program.steps, program.kernels)
    size = 4096
    assert reloaded_constant_bytes(program, by_layer, 4 * size) == 0
    assert reloaded_constant_bytes(program, by_layer, 2 * size) == 4 * size  # each once: the last call left others
    assert reloaded_constant_bytes(program, by_time, 2 * size) == 12 * size
    cold = LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1, kept_bytes=2 * size, reload_bytes_per_s=1e9)
    found = schedule_sections(program, cold)
    assert found.serial_s == pytest.approx(12 * 7e-6 + 4 * size / 1e9)
    assert_valid(program, found.program)
    warm = LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1)
    assert schedule_sections(program, warm).together_s < found.together_s


def test_what_passes_between_two_reads_of_a_constant():
    """A layer that runs again at once finds its weights; one of many kernels finds what all others left."""
    size, names = 4096, [f"W{n}" for n in range(4)]
    again = [Run("", "k", (f"v{t - 1}" if t else "x", "W0"), (f"v{t}",)) for t in range(5)]
    rest = [Run("", n, (f"v{4 + t}", n), (f"v{5 + t}",)) for t, n in enumerate(names[1:])]
    program = program_of([*again, *rest], shape=(1024,))
    weights = {n: np.zeros(1024, np.float32) for n in names}
    program = Program("p", ("x",), program.outputs, program.values, weights, program.steps, program.kernels)
    found = bytes_between_reads(program)
    assert found["k"] == 0, "four of its five runs follow one that read the same"
    assert found["W1"] == found["W3"] == (4 + 2) * size, "all weights, and what one step has of values"


def test_weights_that_fit_a_core_in_parts_alone_are_no_reason_for_lanes():
    """Steps that have both cores find half of their weights in each; a lane would need all of them in one."""
    steps = [Run("", "k", (f"v{n}{t - 1}" if t else "x", f"W{n}"), (f"v{n}{t}",)) for n in range(2) for t in range(8)]
    program = program_of(steps, shape=(1024,))
    weights = {n: np.zeros(1024, np.float32) for n in ("W0", "W1")}
    program = Program("p", ("x",), program.outputs, program.values, weights, program.steps, program.kernels)
    size = 4096
    assert core_cached_constant_bytes(program, steps, size / 2, 2) == (14 * size, 0)
    lanes = [ParallelGroup((tuple(steps[:8]), tuple(steps[8:])))]
    assert core_cached_constant_bytes(program, lanes, size / 2, 2) == (0, 0)
    assert core_cached_constant_bytes(program, lanes, size, 2) == (0, 14 * size)
    saved = (3e-6 / size, 3e-6 / size)
    small = LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1, own_bytes=size / 2, own_s_per_byte=saved)
    found = schedule_sections(program, small)
    assert found.program is program
    assert found.serial_s == pytest.approx(16 * 7e-6 - 14 * 3e-6)
    large = LaneCosts({"k": 7e-6}, {"k": 9e-6}, 2e-6, 2, 1, own_bytes=size, own_s_per_byte=saved)
    assert schedule_sections(program, large).together_s == pytest.approx(8 * 9e-6 + 2e-6 - 14 * 3e-6 / 2)
