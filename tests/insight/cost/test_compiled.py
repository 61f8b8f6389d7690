"""Operators become the kernels that PyTorch's compiler would generate; memory, layouts and launches follow."""

from __future__ import annotations

import math

import pytest

import roller
from roller.errors import RollerError
from roller.insight.cost.compiled import CompileSelection, apply_policy_to_trace, compile_trace
from roller.insight.cost.compiled.memory_format import convolution_memory_format
from roller.insight.cost.compiled.minimum_cut import INFINITE, FlowNetwork
from roller.insight.cost.step_cost import price_step
from roller.insight.forecast import forecast
from roller.insight.step.from_trace import from_trace
from roller.insight.trace.trace import AllocEvent, FreeEvent, Operator, Storage, TensorRecord, Trace
from roller.insight.whatif.predict import what_if
from roller.insight.whatif.whatifs import FusePointwise

X = (64, 32)


def tensor(storage, shape=X, dtype="float32"):
    return TensorRecord(shape, tuple(math.prod(shape[n + 1 :]) for n in range(len(shape))), dtype, storage)


def operator(name, inputs, outputs, phase="forward", names=(), **arguments):
    arguments |= {n: {"tensor": place} for place, n in enumerate(names)}
    return Operator(0, f"aten.{name}", phase, tuple(inputs), tuple(outputs), arguments)


def trace(*operators, unread=(), given=()):
    """Return a trace of one step, whose results are freed after their last use.

    ``unread`` are freed at once, ``given`` are there before the step; what else nothing reads outlives the step.
    """
    numbered = [Operator(n, o.name, o.phase, o.inputs, o.outputs, o.arguments, o.module)
                for n, o in enumerate(operators)]  # fmt: skip
    last = {t.storage: n for n, o in enumerate(numbered) for t in o.inputs}
    events, known = [], set(given)
    for n, o in enumerate(numbered):
        for t in o.outputs:
            if t.storage not in known:
                known.add(t.storage)
                events.append(AllocEvent(t.storage, 4 * math.prod(t.shape), n))
        used = {t.storage for t in (*o.inputs, *o.outputs)} - set(given)
        events += [FreeEvent(s, n) for s in sorted(used) if last.get(s) == n or s in unread]
    storages = {s: Storage("activation", size_bytes=1) for s in known}
    return Trace(tuple(numbered), tuple(events), storages, (0, len(numbered)), {"batch": 1})


def kernels(step, **options):
    found = compile_trace(step, CompileSelection(**options))
    return [(o.name.removesuffix(".default"), [t.storage for t in o.inputs], [t.storage for t in o.outputs])
            for o in found.operators]  # fmt: skip


def unary(name, source, result, phase="forward"):
    return operator(f"{name}.default", [tensor(source)], [tensor(result)], phase)


def matmul(left, right, result, phase="forward"):
    return operator("mm.default", [tensor(left), tensor(right, (32, 32))], [tensor(result)], phase)


def test_a_chain_is_one_kernel_across_modules():
    step = trace(unary("exp", 0, 1), unary("tanh", 1, 2), unary("neg", 2, 3), given={0})
    assert kernels(step) == [("inductor.triton_poi_fused_exp_tanh_neg", [0], [3])]


def test_a_product_ends_a_chain_and_has_no_epilogue():
    step = trace(unary("exp", 0, 1), matmul(1, 9, 2), unary("neg", 2, 3), unary("tanh", 3, 4), given={0, 9})
    assert kernels(step) == [
        ("inductor.triton_poi_fused_exp", [0], [1]),
        ("aten.mm", [1, 9], [2]),
        ("inductor.triton_poi_fused_neg_tanh", [2], [4]),
    ]


def test_a_value_that_a_product_reads_is_written_beside_the_result_of_the_same_kernel():
    step = trace(unary("exp", 0, 1), matmul(1, 9, 2), unary("neg", 1, 3), given={0, 9})
    assert kernels(step)[0] == ("inductor.triton_poi_fused_exp_neg", [0], [1, 3])


def norm(source, result, name="native_layer_norm.default"):
    statistics = [tensor(result + 100, (64, 1)), tensor(result + 200, (64, 1))]
    return operator(
        name, [tensor(source), tensor(90, (32,)), tensor(91, (32,))], [tensor(result), *statistics],
        names=("input", "weight", "bias"), normalized_shape=(32,),
    )  # fmt: skip


def test_a_norm_over_rows_takes_what_is_before_and_after_it():
    add = operator("add.Tensor", [tensor(0), tensor(1)], [tensor(2)])
    step = trace(add, norm(2, 3), unary("gelu", 3, 4), unread={103, 203}, given={0, 1, 90, 91})
    assert kernels(step) == [("inductor.triton_per_fused_add_native_layer_norm_gelu", [0, 1, 90, 91], [4])]


def test_statistics_over_a_batch_take_a_kernel_of_their_own():
    image = (8, 4, 6, 6)
    batch_norm = operator(
        "native_batch_norm.default", [tensor(0, image), tensor(5, (4,)), tensor(6, (4,))],
        [tensor(1, image), tensor(7, (4,)), tensor(8, (4,))], names=("input", "weight", "bias"), training=True,
    )  # fmt: skip
    relu = operator("relu.default", [tensor(1, image)], [tensor(2, image)])
    found = kernels(trace(batch_norm, relu, given={0, 5, 6}))
    assert [name for name, _, _ in found] == [
        "inductor.triton_red_fused_native_batch_norm", "inductor.triton_poi_fused_native_batch_norm_relu",
    ]  # fmt: skip
    assert found[0][1:] == ([0], [7, 8]) and found[1][1:] == ([0, 5, 6, 7, 8], [2])


def test_kernels_with_a_call_between_them_are_not_fused():
    # one of them waits for the product of the other
    step = trace(
        unary("exp", 0, 1), matmul(1, 9, 2), operator("add.Tensor", [tensor(0), tensor(2)], [tensor(3)]), given={0, 9}
    )
    assert len(kernels(step)) == 3


def test_the_backward_computes_again_what_is_cheaper_than_to_save_it():
    step = trace(
        matmul(0, 8, 1), unary("tanh", 1, 2), unary("exp", 2, 3), matmul(3, 9, 4),
        operator("mul.Tensor", [tensor(20), tensor(2)], [tensor(5)], "backward"),
        given={0, 8, 9, 20},
    )  # fmt: skip
    found = kernels(step)
    # the product's result is written anyway, that of tanh is not
    assert found[1] == ("inductor.triton_poi_fused_tanh_exp", [1], [3])
    assert found[3] == ("inductor.triton_poi_fused_tanh_mul", [20, 1], [5])


@pytest.mark.parametrize("name", ["rand_like", "bernoulli", "normal_functional"])
def test_the_backward_reads_the_numbers_that_the_forward_has_drawn(name):
    drawn = operator(f"{name.partition('_f')[0]}.default", [tensor(0)], [tensor(1)], names=("self",))
    step = trace(
        drawn, operator("lt.Scalar", [tensor(1)], [tensor(2, dtype="bool")]),
        operator("mul.Tensor", [tensor(0), tensor(2, dtype="bool")], [tensor(3)]), matmul(3, 9, 4),
        operator("mul.Tensor", [tensor(20), tensor(2, dtype="bool")], [tensor(5)], "backward"),
        given={0, 9, 20},
    )  # fmt: skip
    found = kernels(step)
    assert [one[2] for one in found] == [[2, 3], [4], [5]]  # the mask is of one byte
    assert found[2][:2] == ("inductor.triton_poi_fused_mul", [20, 2])


def test_numbers_that_are_drawn_for_two_readers_are_drawn_once():
    drawn = operator("rand_like.default", [tensor(0)], [tensor(1)])
    step = trace(drawn, unary("neg", 1, 2), operator("sum.default", [tensor(2)], [tensor(3, ())]),
                 operator("cat.default", [tensor(2), tensor(0)], [tensor(4, (128, 32))]), given={0})  # fmt: skip
    assert sum("rand_like" in name for name, _, _ in kernels(step)) == 1


def test_memory_between_the_nodes_of_a_kernel_is_gone():
    step = trace(unary("exp", 0, 1), unary("tanh", 1, 2), unary("neg", 2, 3), given={0})
    found = compile_trace(step)
    assert [(type(e).__name__, e.storage) for e in found.events] == [("AllocEvent", 3)]
    calls = compile_trace(trace(matmul(0, 9, 1), matmul(1, 9, 2), unary("exp", 2, 3), given={0, 9}))
    assert [(type(e).__name__, e.storage, e.operator) for e in calls.events] == [
        ("AllocEvent", 1, 0), ("AllocEvent", 2, 1), ("FreeEvent", 1, 1), ("AllocEvent", 3, 2), ("FreeEvent", 2, 2),
    ]  # fmt: skip


def test_only_what_is_compiled_is_fused():
    outside = Operator(0, "aten.exp.default", "forward", (tensor(2),), (tensor(3),), {}, "head")
    inside = [Operator(0, f"aten.{n}.default", "forward", (tensor(a),), (tensor(a + 1),), {}, "body.0")
              for a, n in enumerate(("exp", "neg"))]  # fmt: skip
    found = kernels(trace(*inside, outside, given={0}), modules=("body",))
    assert [name for name, _, _ in found] == ["inductor.triton_poi_fused_exp_neg", "aten.exp"]
    update = operator("add.Tensor", [tensor(3), tensor(4)], [tensor(5)], "optimizer")
    assert kernels(trace(update))[0][0] == "aten.add.Tensor"


def within(module, *operators):
    return [Operator(0, o.name, o.phase, o.inputs, o.outputs, o.arguments, module) for o in operators]


def test_modules_that_are_compiled_one_by_one_are_graphs_of_their_own():
    first, inner, outer = unary("exp", 0, 1), unary("neg", 1, 2), unary("tanh", 2, 3)
    step = trace(*within("a", first), *within("b.0", inner), *within("b", outer), given={0})
    apart = kernels(step, modules=("a", "b", "b.0"))  # what is within another module is part of its graph
    assert apart == [("inductor.triton_poi_fused_exp", [0], [1]), ("inductor.triton_poi_fused_neg_tanh", [1], [3])]
    assert kernels(step) == [("inductor.triton_poi_fused_exp_neg_tanh", [0], [3])]


def test_the_backward_of_one_module_computes_nothing_of_another_again():
    gradient = operator("mul.Tensor", [tensor(20), tensor(2)], [tensor(5)], "backward")
    step = trace(*within("a", unary("exp", 0, 1), unary("tanh", 1, 2)), *within("b", unary("neg", 2, 3)),
                 *within("b", gradient), given={0, 20})  # fmt: skip
    assert kernels(step)[-1][1:] == ([20, 0], [5])  # one graph: from the input
    assert kernels(step, modules=("a", "b"))[-1][1:] == ([20, 2], [5])


def test_each_module_has_its_own_mode():
    chain = [unary(name, n, n + 1) for n, name in enumerate(("exp", "tanh"))]
    products = [matmul(n, 20, n + 1) for n in range(2, 8)]
    step = trace(*within("a", *chain), *within("b", *products), given={0, 20})
    spec = roller.load_spec("a100")

    def host_s(*modes):
        options = {"batch": 1, "compiled": {"modules": ["a", "b"], "mode": "default", "modes": list(modes)}}
        return forecast(Trace(**{**vars(step), "options": options}), spec).host_s

    plain = host_s("default", "default")  # seven launches
    assert host_s("default", "reduce-overhead") == pytest.approx(plain * 2 / 7)
    assert host_s("reduce-overhead", "default") == plain


def convolution(channels=(64, 128), groups=1, window=3, phase="forward"):
    weight = tensor(2, (channels[1], channels[0] // groups, window, window))
    image, out = tensor(1, (8, channels[0], 16, 16)), tensor(3, (8, channels[1], 16, 16))
    return operator(
        "convolution.default", [image, weight], [out], phase, ("input", "weight"), groups=groups, stride=[1, 1],
        padding=[window // 2] * 2,
    )  # fmt: skip


def test_convolutions_run_in_channels_last_unless_one_of_the_graph_would_lose_much():
    backward = operator("convolution_backward.default", [], [], "backward")
    assert convolution_memory_format([unary("exp", 0, 1)]) == "contiguous"
    assert (
        convolution_memory_format([convolution()])
        == convolution_memory_format([convolution(), backward])
        == "channels_last"
    )
    assert convolution_memory_format([convolution(groups=64)]) == "channels_last"  # depthwise
    grouped = convolution((128, 128), 2)
    assert convolution_memory_format([grouped]) == "contiguous"
    assert convolution_memory_format([convolution(), convolution((512, 512)), grouped]) == "channels_last"
    assert convolution_memory_format([convolution(), convolution((512, 512)), grouped, backward]) == "contiguous"


def test_images_and_filters_are_copied_once_and_results_stay_in_channels_last():
    relu = operator("relu.default", [tensor(3, (8, 128, 16, 16))], [tensor(4, (8, 128, 16, 16))])
    found = compile_trace(trace(convolution(), relu, given={1, 2})).operators
    names = [o.name for o in found]
    assert names == ["inductor.triton_poi_fused_clone.default"] * 2 + [
        "aten.convolution.default", "inductor.triton_poi_fused_relu.default",
    ]  # fmt: skip
    assert {t.stride[1] for o in found[2:] for t in (*o.inputs, *o.outputs)} == {1}
    points = compile_trace(trace(convolution(window=1), given={1, 2})).operators
    assert len(points) == 2  # filters of one point are the same in both formats


def test_the_bias_of_a_convolution_is_added_by_what_follows():
    own = convolution()
    arguments = {**own.arguments, "bias": {"tensor": 2}}
    biased = Operator(0, own.name, "forward", (*own.inputs, tensor(7, (128,))), own.outputs, arguments)
    relu = operator("relu.default", [tensor(3, (8, 128, 16, 16))], [tensor(4, (8, 128, 16, 16))])
    *_, call, kernel = compile_trace(trace(biased, relu, given={1, 2, 7})).operators
    assert call.arguments["bias"] is None and len(call.inputs) == 2
    assert [t.storage for t in kernel.inputs] == [call.outputs[0].storage, 7]


def test_the_minimum_cut_separates_by_the_least_capacity():
    network = FlowNetwork()
    for a, b, capacity in ((0, 1, INFINITE), (0, 2, 3.0), (1, 3, 5.0), (2, 3, INFINITE), (1, 2, 1.0), (3, 9, INFINITE)):
        network.connect(a, b, capacity)
    assert network.minimum_cut_start_nodes(0, 9) == {0, 1}  # 3 + 5 + 1


def test_a_fused_chain_is_faster_and_a_captured_graph_is_launched_once():
    step = trace(*(unary(name, n, n + 1) for n, name in enumerate(("exp", "tanh", "neg", "exp") * 3)), given={0})
    eager, compiled = (forecast(step, "a100", policy=policy) for policy in ("library", "compiled"))
    assert compiled.device_s < 0.2 * eager.device_s and compiled.host_s == pytest.approx(eager.host_s / 12)
    calls = trace(*(matmul(n, 20, n + 1) for n in range(6)), given={0, 20})
    captured = Trace(
        **{**vars(calls), "options": {"batch": 1, "compiled": {"modules": [""], "mode": "reduce-overhead"}}}
    )
    assert forecast(captured, "a100").host_s == pytest.approx(forecast(calls, "a100").host_s / 6)


def test_a_step_that_compiles_itself_is_compiled_and_a_processor_is_not_described():
    step = trace(unary("exp", 0, 1), unary("neg", 1, 2), given={0})
    itself = Trace(**{**vars(step), "options": {"compiled": {"modules": [""], "mode": "default"}}})
    assert len(price_step(itself, roller.load_spec("a100")).operators) == 1
    assert len(price_step(step, roller.load_spec("a100")).operators) == 2
    assert apply_policy_to_trace(itself, on_gpu=False) is itself and apply_policy_to_trace(itself, "roller") is itself
    again = apply_policy_to_trace(itself)
    assert apply_policy_to_trace(again, "compiled") is again and Trace.from_json(again.to_json()).options["is_compiled"]
    with pytest.raises(RollerError, match=r"policy: expected library or roller on 'cpu-avx2', got compiled"):
        price_step(step, roller.load_spec("cpu-avx2"), "compiled")


def test_the_what_if_of_a_traced_step_is_the_compiled_forecast():
    step = trace(
        matmul(0, 8, 1), unary("tanh", 1, 2), unary("exp", 2, 3), matmul(3, 9, 4), norm(4, 5),
        unread={105, 205}, given={0, 8, 9, 90, 91},
    )  # fmt: skip
    answer = what_if(from_trace(step, "a100", host_op_s=0.0), FusePointwise())
    assert answer.iteration_us == pytest.approx(
        1e6 * forecast(step, "a100", policy="compiled", host_op_s=0.0).iteration_s
    )
    assert not any("bound" in text for text in answer.assumptions)
