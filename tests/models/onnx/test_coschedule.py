"""What co-scheduling knows comes from construction for a share of the units, and only of kernels with company."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from roller.hardware import load_spec
from roller.models.graph.coschedule import concurrent_kernels, coschedule_program, coscheduling_costs, make_predictor
from roller.ops import matmul
from roller.perf.estimate import Estimate
from roller_runtime.plan.program_steps import KernelSource, ParallelGroup, Program, Run, Value


def lstm_like(layers, steps, batch=1, hidden=256):
    """Return cells of two products, weights their own in every layer; the gates are left out."""
    source = KernelSource(matmul(batch, hidden, hidden), ("B",))
    constants = {f"W{i}": np.zeros((hidden, hidden), np.float32) for i in range(layers)}
    values = {n: Value(n, (hidden, hidden)) for n in constants} | {"x": Value("x", (batch, hidden))}
    out = []
    for layer, t in itertools.product(range(layers), range(steps)):
        below, before = f"h{layer - 1}.{t}" if layer else "x", f"h{layer}.{t - 1}" if t else "x"
        names = [f"u{layer}.{t}", f"h{layer}.{t}"]
        values |= {n: Value(n, (batch, hidden)) for n in names}
        out += [Run("", "product", (below, f"W{layer}"), (names[0],)), Run("", "sum", (names[0], before), (names[1],))]
    plus = KernelSource(matmul(batch, hidden, 1))  # any kernel of two inputs
    kernels = {"product": source, "sum": plus}
    return Program("lstm", ("x",), (f"h{layers - 1}.{steps - 1}",), values, constants, tuple(out), kernels)


@pytest.fixture
def cores():
    return load_spec("cpu-avx512").with_overrides({"units": 2})


def test_the_cells_of_a_small_lstm_are_predicted_to_gain_from_a_core_each(cores):
    program = lstm_like(6, 12)
    found = coschedule_program(program, cores)
    assert found.together_s < 0.9 * found.serial_s
    assert found.runs > len(program.steps) // 2
    assert all(len(s.lanes) == 2 for s in found.program.steps if isinstance(s, ParallelGroup))
    assert {s.units for s in found.program.kernels.values()} == {None, 1}
    assert found.program.kernels["product@1"].constants == ("B",)


def test_large_products_stay_on_all_cores(cores):
    program = lstm_like(3, 3, batch=512, hidden=512)
    assert coschedule_program(program, cores).program is program


def test_estimates_that_are_there_are_not_made_again(cores):
    program = lstm_like(3, 4)
    asked = []

    def predict(sources, units):
        asked.append((sorted(sources), units))
        return make_predictor(cores)(sources, units)

    whole = make_predictor(cores)(program.kernels, None)
    found = coschedule_program(program, cores, predict)
    assert asked == [(sorted(program.kernels), None), (["product", "sum"], 1)]
    assert found.serial_s <= 12 * sum(e.seconds for e in whole.values())  # less what cores keep of their weights


def test_nothing_is_asked_of_a_chain_or_a_single_core(cores):
    def never(sources, units):
        raise AssertionError("asked")

    assert concurrent_kernels(lstm_like(1, 5)) == {"product", "sum"}  # the next product needs no sum
    chain = lstm_like(5, 1)
    assert concurrent_kernels(chain) == set()
    assert coschedule_program(chain, cores, never).program is chain
    assert coschedule_program(lstm_like(3, 4), cores.with_overrides({"units": 1}), never).program.steps


def test_kernels_without_a_program_are_left_to_the_compiler_to_report(cores):
    program = lstm_like(3, 4)
    assert coschedule_program(program, cores, lambda sources, units: {}).program is program


def test_what_lanes_share_is_the_busiest_layer_of_the_whole_device(cores):
    estimate = Estimate(3e-6, "l2", (("l2_s", 3e-6), ("l3_s", 1e-6), ("dram_s", 2e-6)))
    costs = coscheduling_costs({"k": estimate}, {"k": estimate}, cores, 2, 1)
    assert costs.common_s == {"k": 2e-6}
    assert costs.sync_s == cores.execution.fork_s


def test_streams_of_a_gpu_take_parts_of_its_units():
    found = coschedule_program(lstm_like(6, 12), load_spec("h200"))
    assert {s.units for s in found.program.kernels.values()} <= {None, 66, 33}
    assert found.together_s < found.serial_s
