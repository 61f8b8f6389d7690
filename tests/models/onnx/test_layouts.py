"""Channels in blocks: kernels on them compute the same, and they spread as far as they are predicted to pay."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import roller
from roller.errors import RollerWarning
from roller.hardware import load_spec
from roller.models import compile as compiling
from roller.models.batch import worker_tasks
from roller.models.compile import compile_for_device, partition_graph, read_folded_graph
from roller.models.graph.blocked_channel_rewrite import BlockedLayout, make_layout_conversion_kernel, rewrite_to_blocked
from roller.models.graph.choose_blocked_channel_values import (
    ChosenLayouts,
    _LayoutProblem,
    apply_layouts,
    choose_layouts,
)
from roller.models.graph.coschedule import make_predictor
from roller.models.graph.mincut import INFINITE, FlowNetwork
from roller.models.options import ModelOptions
from roller.perf.estimate import Estimate
from roller_runtime.plan.program_steps import Join, Program, Run
from tests.models.onnx import conv_graphs, models
from tests.models.onnx.networks import tower
from tests.models.session.reference import evaluate_program
from tests.offenders import every


def blocked_throughout(program: Program, block: int) -> ChosenLayouts:
    """Return a program with everything in blocks that can be, whatever it costs: held to the plain one."""
    choice = _LayoutProblem(program, block)
    return choice.program_with(frozenset(choice.able))


def program_of(proto, batch=None):
    return partition_graph(read_folded_graph(proto, batch=batch))


# --- the cut ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=14))
def test_a_cut_is_the_cheapest_of_all(edges):
    net = FlowNetwork()
    for _ in range(4):
        net.add_node()
    for tail, head, cost in edges:
        net.add_edge(tail, head, cost)
    side = net.source_side()

    def cost(members):
        return sum(c for tail, head, c in edges if tail in members and head not in members)

    others = (2, 3, 4, 5)
    every = [{0, *some} for n in range(5) for some in itertools.combinations(others, n)]
    assert 0 in side and 1 not in side
    assert cost(side) == min(cost(members) for members in every)


def test_what_may_not_be_cut_is_not():
    net = FlowNetwork()
    a, b = net.add_node(), net.add_node()
    for tail, head, cost in [(0, a, 3), (a, b, INFINITE), (b, 1, 5)]:
        net.add_edge(tail, head, cost)
    assert net.source_side() == {0}


# --- kernels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 32, 5, 7), (1, 16, 3), (3, 48, 2, 2, 2)])
def test_conversions_there_and_back(shape):
    layout = BlockedLayout.of(shape, 16)
    x = np.random.default_rng(0).standard_normal(shape)
    (there,) = make_layout_conversion_kernel(layout, "float32", to_blocked=True).source.expression.evaluate(
        [x.reshape(make_layout_conversion_kernel(layout, "float32", to_blocked=True).source.expression.inputs[0].shape)]
    )
    want = np.moveaxis(x.reshape(shape[0], shape[1] // 16, 16, *shape[2:]), 2, -1)
    assert want.shape == layout.shape and np.array_equal(there.reshape(-1), want.reshape(-1))
    back = make_layout_conversion_kernel(layout, "float32", to_blocked=False).source.expression
    assert np.array_equal(back.evaluate([there.reshape(back.inputs[0].shape)])[0].reshape(-1), x.reshape(-1))


@pytest.mark.parametrize("shape", [(8, 60, 7, 7), (8, 64), (8, 64, 1, 1), (4, 0, 2, 2)])
def test_what_has_no_blocks(shape):
    assert BlockedLayout.of(shape, 16) is None


@every("shape", [(2, 32, 35), (2, 32, 5, 7), (64, 35), (2, 2, 16, 35), (1, 2, 32, 5, 1, 7), (2240,)])
def test_the_channel_is_found_in_any_shape_of_the_value(shape):
    layout = BlockedLayout.of((2, 32, 5, 7), 16)
    found, place = layout.split(shape)
    assert np.prod(found) == 2240 and found[place] == 16 and np.prod(found[place + 1 :]) == 35


def test_a_shape_that_cuts_through_blocks_has_no_digits():
    assert BlockedLayout.of((1, 48, 5, 7), 16).split((2, 24, 35)) is None


def test_a_convolution_on_blocks_is_a_sum_of_products_over_whole_axes():
    program = program_of(tower(channels=32), batch=2)
    run = program.steps[0]
    source, layout = program.kernels[run.kernel], BlockedLayout.of((2, 32, 8, 8), 16)
    made = rewrite_to_blocked(source, {source.expression.output_tensors[0].name: layout}).source
    anchor = made.expression.anchor
    assert all(i.is_affine for ld in anchor.loads for i in ld.index)
    assert anchor.spatial_axes[-1].extent == 16 and made.expression.output_tensors[0].shape[-1] == 16
    assert made.constants == source.constants


# --- programs ---------------------------------------------------------------------------------------


def check(proto, block, seed=0, batch=None):
    """Hold a program with everything in blocks to the plain one and to ONNX Runtime; return the steps in blocks."""
    program = program_of(proto, batch)
    laid = blocked_throughout(program, block)
    shape = program.values["x"].shape
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    plain, blocked = evaluate_program(program, [x]), evaluate_program(laid.program, [x])
    for name, want in zip(program.outputs, models.runtime(proto, {"x": x}), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        assert blocked[name].shape == want.shape
        assert np.abs(blocked[name] - want).max() <= 1e-4 * scale
        assert np.allclose(blocked[name], plain[name], rtol=1e-6, atol=1e-6 * scale)
    return laid


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_networks_compute_the_same_in_blocks(first):
    found = [check(conv_graphs.network(seed), (4, 8)[seed % 2], seed) for seed in range(first, first + 10)]
    assert sum(len(laid.blocked) for laid in found) > 10  # and they are in blocks


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 200, 50))
def test_many_random_networks_compute_the_same_in_blocks(first):
    for seed in range(first, first + 50):
        check(conv_graphs.network(seed, 16), (2, 4, 8, 16)[seed % 4], seed)


def costs(program, gains):
    """Return a prediction: a second per kernel, less in blocks for those that ``gains`` names, 0.3 per conversion."""

    def predict(sources, units):
        assert units is None
        found = {}
        for key, source in sources.items():
            label = source.expression.name
            gain = 0.0 if key in program.kernels else next((g for part, g in gains.items() if part in label), 0.0)
            found[key] = Estimate(0.3 if label.startswith("to ") else 1.0 - gain, "compute")
        return found

    return predict


def chosen(proto, gains, batch=None):
    """Return the program laid out for such gains."""
    program = program_of(proto, batch)
    spec = load_spec("cpu-avx512")
    laid = choose_layouts(program, replace(spec, teu=replace(spec.teu, lanes=8)), costs(program, gains))
    x = np.random.default_rng(1).standard_normal(program.values["x"].shape, dtype=np.float32)
    plain, blocked = evaluate_program(program, [x]), evaluate_program(laid.program, [x])
    assert all(np.allclose(plain[n], blocked[n], atol=1e-5) for n in program.outputs)
    return laid


def chain(*nodes, channels=16, outputs=("y",)):
    """Return a network of nodes ``(operator, inputs, output)``: convolutions with as many channels, sums, joins."""
    made, weights, filters = [], {}, {"x": channels}
    for op, inputs, output in nodes:
        more, attributes = [], {}
        filters[output] = sum(filters[i] for i in inputs) if op == "Concat" else filters[inputs[0]]
        if op == "Conv":
            size = 2 * len(made) + 1  # kernels of their own
            more, attributes = [f"w{output}"], {"pads": [size // 2] * 4}
            shape = (filters[output], filters[inputs[0]], size, size)
            weights[more[0]] = np.random.default_rng(len(made)).standard_normal(shape, dtype=np.float32) / 12
        if op == "Concat":
            attributes = {"axis": 1}
        made.append(helper.make_node(op, [*inputs, *more], [output], f"{op}_{output}", **attributes))
    ends = [("x", models.FLOAT, (2, channels, 5, 6))], [(n, models.FLOAT, (2, filters[n], 5, 6)) for n in outputs]
    return models.model_of(made, *ends, weights)


def converts(laid):
    """Return the values that are converted."""
    return [s.inputs[0] for s in laid.program.steps if isinstance(s, Run) and s.label.startswith("layout of")]


def test_a_layout_spreads_over_what_takes_it_and_ends_at_the_outputs():
    proto = chain(("Conv", ["x"], "a"), ("Conv", ["a"], "b"), ("Conv", ["b"], "y"))
    laid = chosen(proto, {"Conv_b": 0.5})
    # The neighbours store and read blocks themselves, at no cost: nothing is converted.
    assert len(laid.blocked) == 3 and not converts(laid)
    assert laid.program.values["a"].shape == (2, 2, 5, 6, 8) and laid.program.values["y"].shape == (2, 16, 5, 6)
    assert laid.plain_s == 3 and laid.chosen_s == 2.5 and "3 steps" in str(laid)


def test_what_would_cost_more_reads_a_conversion_and_what_gains_less_stays_plain():
    proto = chain(("Conv", ["x"], "a"), ("Conv", ["a"], "b"), ("Conv", ["b"], "y"))
    laid = chosen(proto, {"Conv_a": 0.5, "Conv_b": -0.4, "Conv_y": 0.5})
    assert len(laid.blocked) == 3 and not converts(laid)  # two conversions would cost 0.6
    laid = chosen(proto, {"Conv_a": 0.8, "Conv_b": -0.9, "Conv_y": 0.8})
    assert converts(laid) == ["a", "b"] and len(laid.blocked) == 2
    laid = chosen(proto, {"Conv_a": 0.01, "Conv_b": -0.9, "Conv_y": 0.01})
    assert not laid.blocked and not converts(laid)


def test_a_value_is_converted_once_however_many_read_it():
    proto = chain(("Conv", ["x"], "a"), ("Conv", ["a"], "b"), ("Conv", ["a"], "c"), ("Add", ["b", "c"], "y"))
    laid = chosen(proto, {"Conv_a": 0.9, "Conv_b": -0.5, "Conv_c": -0.5})
    assert converts(laid) == ["a"] and laid.blocked == ("Conv_a",)


def test_a_residual_between_blocked_and_plain_is_converted():
    proto = chain(("Conv", ["x"], "a"), ("Conv", ["a"], "b"), ("Add", ["b", "a"], "c"), ("Sigmoid", ["c"], "d"),
                  ("Conv", ["d"], "y"))  # fmt: skip
    laid = chosen(proto, {"Conv_a": -2.0, "Conv_b": 0.9, "Conv_y": 0.0})
    assert "a" in converts(laid) and any("Conv_b" in label for label in laid.blocked)


@pytest.mark.parametrize(("channels", "blocks"), [(16, True), (12, False)])
def test_a_join_keeps_blocks_that_all_its_parts_have(channels, blocks):
    nodes = [("Conv", ["x"], "a"), ("Conv", ["x"], "b"), ("Concat", ["a", "b"], "c"), ("Conv", ["c"], "y")]
    laid = chosen(chain(*nodes, channels=channels), {"Conv_a": 0.4, "Conv_b": 0.4, "Conv_y": 0.4})
    (join,) = (s for s in laid.program.steps if isinstance(s, Join))
    ranks = {len(laid.program.values[n].shape) for n in (*join.sources, join.target)}
    assert ranks == ({5} if blocks else {4})  # 24 channels divide by 8, the 12 of each part do not


def test_an_output_in_the_middle_stays_as_it_is_declared():
    proto = chain(("Conv", ["x"], "a"), ("Conv", ["a"], "b"), ("Conv", ["b"], "y"), outputs=("b", "y"))
    laid = chosen(proto, {"Conv": 0.5})
    assert laid.program.values["b"].shape == (2, 16, 5, 6) and laid.program.values["a"].shape == (2, 2, 5, 6, 8)


def test_what_gains_too_little_or_fits_no_program_changes_nothing():
    program = program_of(tower(channels=16), batch=1)
    spec = load_spec("cpu-avx512")
    assert choose_layouts(program, spec, costs(program, {"conv": 0.001})).program is program

    def nothing_blocked(sources, units):
        return {k: e for k, e in costs(program, {})(sources, units).items() if k in program.kernels}

    assert choose_layouts(program, spec, nothing_blocked).program is program


def test_products_that_sum_over_no_channels_are_not_even_predicted():
    nodes = [("MatMul", ["x", "x"], "a"), ("Relu", ["a"], "b"), ("MatMul", ["b", "x"], "y")]
    made = [helper.make_node(op, inputs, [output], output) for op, inputs, output in nodes]
    ends = [("x", models.FLOAT, (2, 16, 6, 6))], [("y", models.FLOAT, (2, 16, 6, 6))]
    program = program_of(models.model_of(made, *ends))

    def predict(sources, units):
        raise AssertionError("nothing needs to be predicted")

    assert blocked_throughout(program, 16).blocked  # though it could be blocked
    assert choose_layouts(program, load_spec("cpu-avx512"), predict).program is program


def test_devices_whose_threads_are_lanes_have_no_blocks():
    program = program_of(tower(channels=32), batch=1)

    def predict(sources, units):
        raise AssertionError("nothing needs to be predicted")

    assert choose_layouts(program, load_spec("v100"), predict).program is program


def channels_last(height, width):
    """Return convolutions, and sums of their transposed result, whose second dimension is the image's height."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((16, 16, 3, 3), dtype=np.float32) / 12 for n in ("w", "v")}
    made = [helper.make_node("Conv", ["x", "w"], ["a"], "Conv_a", pads=[1] * 4),
            helper.make_node("Conv", ["a", "v"], ["b"], "Conv_b", pads=[1] * 4),
            helper.make_node("Transpose", ["b"], ["t"], "Transpose_t", perm=[0, 2, 3, 1]),
            helper.make_node("CumSum", ["t", "axis"], ["y"], "CumSum_y")]  # fmt: skip
    ends = [("x", models.FLOAT, (1, 16, height, width))], [("y", models.FLOAT, (1, height, width, 16))]
    return program_of(models.model_of(made, *ends, {**weights, "axis": np.array(3, np.int64)}))


def test_what_is_a_multiple_of_a_block_at_some_sizes_only_is_in_blocks_at_none():
    several = [channels_last(h, w) for h, w in ((16, 8), (20, 8), (30, 40))]
    spec = replace(load_spec("cpu-avx512"), teu=replace(load_spec("cpu-avx512").teu, lanes=8))
    predict = costs(several[0], {"Conv": 0.5})
    alone, ranged = (choose_layouts(several[0], spec, predict, others) for others in ((), several[1:]))
    heights = {n for n, v in several[0].values.items() if v.shape == (1, 16, 8, 16)}
    assert heights & set(_LayoutProblem(several[0], 8).values) and not heights & ranged.blockable
    assert alone.blockable is None and len(ranged.blocked) == 2
    laid = [apply_layouts(p, spec, ranged) for p in several]
    for program, plain in zip(laid, several, strict=True):
        assert [type(s) for s in program.steps] == [type(s) for s in laid[0].steps]
        assert len(program.values["a"].shape) == 5
        x = np.random.default_rng(1).standard_normal(plain.values["x"].shape, dtype=np.float32)
        assert np.allclose(evaluate_program(program, [x])["y"], evaluate_program(plain, [x])["y"], atol=1e-5)


def test_real_predictions_choose_and_explain():
    program = program_of(tower(channels=32, size=16), batch=4)
    spec = load_spec("cpu-avx512")
    laid = choose_layouts(program, spec, make_predictor(spec))
    assert laid.chosen_s <= laid.plain_s
    assert str(laid).startswith("layouts: ") and ("blocks" in str(laid)) == bool(laid.blocked)


@pytest.mark.slow
def test_a_model_in_blocks_runs_as_the_plain_one_and_is_saved(tmp_path):
    program = program_of(tower(channels=32, blocks=2), batch=2)
    laid = blocked_throughout(program, 16)
    assert len(laid.blocked) > 2
    made = compile_for_device(laid.program, "cpu", ModelOptions(deterministic=True, progress=False)).session()
    x = np.random.default_rng(3).standard_normal((2, 32, 8, 8), dtype=np.float32)
    want = evaluate_program(program, [x])["y"]
    assert np.allclose(made.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-5)
    made.save(tmp_path / "saved")
    assert np.array_equal(roller.load_model(tmp_path / "saved").run(None, {"x": x})[0], made.run(None, {"x": x})[0])


@pytest.mark.slow
def test_a_kernel_in_blocks_that_no_candidate_computes_does_not_fail_the_model(monkeypatch):
    model = tower(channels=32)
    declared = program_of(model, batch=2)
    laid = blocked_throughout(declared, 16)
    rewritten_only = [s.expression for k, s in laid.program.kernels.items() if k not in declared.kernels]
    assert rewritten_only
    kept = worker_tasks.BuildTask.run

    def refuse(task):
        if task.expression in rewritten_only:
            raise ValueError("no luck")
        return kept(task)

    monkeypatch.setattr(compiling, "choose_layouts", lambda *_: laid)
    monkeypatch.setattr(worker_tasks.BuildTask, "run", refuse)
    with pytest.warns(RollerWarning, match=r"kernels? in blocks .* no luck\. The model is compiled without them"):
        session = roller.compile_model(model, batch=2, top_k=1, cache=False, progress=False)
    x = np.random.default_rng(3).standard_normal((2, 32, 8, 8), dtype=np.float32)
    want = evaluate_program(declared, [x])["y"]
    assert np.allclose(session.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_normalisation_in_blocks_between_convolutions_is_compiled():
    """Its variance is a sum of few different terms on the inputs that candidates are checked with."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((rng.standard_normal((32, c, 3, 3)) * 0.06).astype(np.float32), f"w{c}")
        for c in (16, 32)
    ] + [numpy_helper.from_array(rng.uniform(0.8, 1.2, 32).astype(np.float32), name) for name in ("scale", "bias")]
    nodes = [
        helper.make_node("Conv", ["x", "w16"], ["a"], pads=[1] * 4),
        helper.make_node("InstanceNormalization", ["a", "scale", "bias"], ["i"]),
        helper.make_node("LeakyRelu", ["i"], ["n"], alpha=0.1),
        helper.make_node("Conv", ["n", "w32"], ["y"], pads=[1] * 4),
    ]
    ends = [helper.make_tensor_value_info(n, 1, (1, c, 48, 48)) for n, c in (("x", 16), ("y", 32))]
    graph = helper.make_graph(nodes, "normalised", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = roller.compile_model(model, progress=False)
    x = rng.standard_normal((1, 16, 48, 48)).astype(np.float32)
    want = models.runtime(model, {"x": x})[0]
    assert np.allclose(session.run(None, {"x": x})[0], want, rtol=1e-4, atol=1e-4)
