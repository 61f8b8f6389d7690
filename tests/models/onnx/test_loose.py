"""Results of unknown shape: left to ONNX Runtime with all that reads them, and nothing more, where that is wanted."""

from __future__ import annotations

import json
import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import roller
from roller.emulator.emulated_device import EmulatedDevice
from roller.errors import LaunchError, RollerWarning, UnsupportedError
from roller.models.compile import partition_graph, read_folded_graph
from roller.models.onnxruntime_reference import make_random_expected_outputs
from roller.models.session.check_and_time_bundle import run_bundle
from roller_runtime.plan.program_steps import Foreign, Run
from roller_runtime.session.caller_arrays import TensorDescription
from tests.models.session.reference import evaluate_program
from tests.offenders import every

N = helper.make_node
F, I = TensorProto.FLOAT, TensorProto.INT64  # noqa: E741


def array(name, values, dtype=np.int64):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def model_of(nodes, inputs, outputs, weights=(), opset=17):
    ends = [[helper.make_tensor_value_info(n, t, s) for n, (t, s) in e.items()] for e in (inputs, outputs)]
    graph = helper.make_graph(nodes, "loose", *ends, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def weights(*shapes):
    rng = np.random.default_rng(5)
    return [array(f"w{n}", rng.standard_normal(s), np.float32) for n, s in enumerate(shapes)]


def found():
    """Indices of what is positive, which nothing but the caller reads; the sum beside it is a kernel."""
    nodes = [N("MatMul", ["x", "w0"], ["m"], "product"), N("Relu", ["m"], ["r"], "relu"),
             N("NonZero", ["r"], ["at"], "where"), N("ReduceSum", ["r"], ["sum"], "sum", keepdims=0)]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8))}, {"at": (I, [2, "n"]), "sum": (F, ())}, weights((8, 8)))


def known_again():
    """Gathered rows are summed: shapes are known again, and kernels go on with the sum."""
    nodes = [N("MatMul", ["x", "w0"], ["m"], "product"), N("Relu", ["m"], ["r"], "relu"),
             N("NonZero", ["r"], ["at"], "where"), N("Transpose", ["at"], ["to"], "turn", perm=[1, 0]),
             N("GatherND", ["m", "to"], ["taken"], "gather"), N("ReduceMax", ["taken"], ["top"], "top", keepdims=1),
             N("Div", ["m", "top"], ["d"], "divide"), N("MatMul", ["d", "w1"], ["y"], "again")]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8))}, {"y": (F, (4, 8))}, weights((8, 8), (8, 8)))


def around():
    """A kernel's result is read by what reads unknown shapes: the kernel lies between two nodes of one region."""
    nodes = [N("NonZero", ["x"], ["at"], "where"), N("Shape", ["at"], ["size"], "size"),
             N("Cast", ["size"], ["f"], "cast", to=F), N("ReduceSum", ["f"], ["s"], "known", keepdims=0),
             N("Mul", ["x", "s"], ["k"], "between"), N("Transpose", ["at"], ["to"], "turn", perm=[1, 0]),
             N("GatherND", ["k", "to"], ["y"], "gather"), N("Tanh", ["x"], ["z"], "apart")]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8))}, {"y": (F, ["n"]), "z": (F, (4, 8))})


def reshaped():
    """A target of Reshape that is fed; what follows has a known rank only."""
    nodes = [N("Reshape", ["x", "target"], ["r"], "reshape"), N("Relu", ["r"], ["y"], "relu"),
             N("Tanh", ["x"], ["z"], "apart")]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8)), "target": (I, (2,))}, {"y": (F, ["a", "b"]), "z": (F, (4, 8))})


def boxes():
    """Suppression of overlapping boxes: at most so many, but only a run knows how many."""
    nodes = [N("Sigmoid", ["scores"], ["p"], "p"),
             N("NonMaxSuppression", ["boxes", "p", "most", "iou"], ["kept"], "nms"),
             N("Gather", ["kept", "column"], ["index"], "index", axis=1),
             N("Gather", ["boxes", "index"], ["y"], "pick", axis=1)]  # fmt: skip
    held = [array("most", [3]), array("iou", [0.5], np.float32), array("column", 2)]
    return model_of(nodes, {"boxes": (F, (1, 6, 4)), "scores": (F, (1, 1, 6))}, {"y": (F, [1, "n", 4])}, held)


def unique():
    nodes = [N("Relu", ["x"], ["r"], "relu"), N("Unique", ["r"], ["u", "first", "", "count"], "unique"),
             N("ReduceSum", ["count"], ["all"], "all", keepdims=0)]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8))}, {"u": (F, ["n"]), "first": (I, ["n"]), "all": (I, ())})


def loop():
    """A loop that runs as often as a value says, and reads what is around it."""
    tensor, yes = helper.make_tensor_value_info, TensorProto.BOOL
    body = helper.make_graph(
        [N("Add", ["state", "outer"], ["sum"], "add"), N("Identity", ["going"], ["goes"], "id"),
         N("Relu", ["sum"], ["row"], "row")],
        "body", [tensor("turn", I, ()), tensor("going", yes, ()), tensor("state", F, (4, 8))],
        [tensor("goes", yes, ()), tensor("sum", F, (4, 8)), tensor("row", F, (4, 8))],
    )  # fmt: skip
    nodes = [N("Relu", ["x"], ["outer"], "relu"), N("Loop", ["often", "", "x"], ["last", "all"], "loop", body=body),
             N("Tanh", ["last"], ["y"], "tanh")]  # fmt: skip
    return model_of(nodes, {"x": (F, (4, 8)), "often": (I, ())}, {"y": (F, (4, 8)), "all": (F, ["n", 4, 8])})


def feeds_of(model, seed=0):
    rng = np.random.default_rng(seed)
    out = {}
    for entry in model.graph.input:
        shape = tuple(d.dim_value for d in entry.type.tensor_type.shape.dim)
        if entry.type.tensor_type.elem_type == F:
            out[entry.name] = rng.standard_normal(shape).astype(np.float32)
    if "target" in {i.name for i in model.graph.input}:
        out["target"] = np.array([(2, 16), (8, 4)][seed], np.int64)
    if "often" in {i.name for i in model.graph.input}:
        out["often"] = np.array((3, 0)[seed], np.int64)
    if "boxes" in out:
        corner = np.abs(out["boxes"])
        out["boxes"] = np.concatenate([corner[..., :2], corner[..., :2] + corner[..., 2:]], -1)
    return out


#: Model, and the nodes ONNX Runtime computes of it.
MODELS = {
    "found": (found(), {"where"}), "known_again": (known_again(), {"where", "turn", "gather", "top"}),
    "around": (around(), {"where", "size", "cast", "known", "between", "turn", "gather"}),
    "reshaped": (reshaped(), {"reshape", "relu"}), "boxes": (boxes(), {"nms", "index", "pick"}),
    "unique": (unique(), {"unique", "all"}), "loop": (loop(), {"loop", "tanh"}),  # rounds may change shapes
}  # fmt: skip


def wanted(model, feeds):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def program_of(model):
    with pytest.warns(RollerWarning, match="nodes that onnxruntime computes"):
        return partition_graph(read_folded_graph(model, fallback="onnxruntime"), fallback="onnxruntime")


def agree(got, expected):
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_what_has_no_known_shape_is_left_outside_and_nothing_else(name):
    model, outside = MODELS[name]
    program = program_of(model)
    regions = [s for s in program.steps if isinstance(s, Foreign)]
    assert set().union(*(s.nodes for s in regions)) == outside
    for seed in (0, 1):
        feeds = feeds_of(model, seed)
        agree(list(evaluate_program(program, feeds).values()), wanted(model, feeds))


@every("name", MODELS)
def test_without_a_fallback_everything_is_refused_at_once(name):
    with pytest.raises(UnsupportedError, match="fallback='onnxruntime' leaves what it can to ONNX Runtime"):
        read_folded_graph(MODELS[name][0])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["found", "known_again", "loop"])
def test_a_session_gives_results_with_the_shape_they_have(name, tmp_path, cache):
    model, outside = MODELS[name]
    with pytest.warns(RollerWarning, match="known only at run time|computed at run time") as said:
        session = roller.compile_model(model, top_k=1, fallback="onnxruntime", progress=False)
    assert all(f"'{n}'" in str(said[0].message) for n in outside)
    assert [d.name for d in session.outputs] == [o.name for o in model.graph.output]
    folder = session.save(tmp_path / "m")
    for each in (session, roller.load_model(folder)):
        for seed in (0, 1):
            feeds = feeds_of(model, seed)
            agree(each.run(None, feeds), wanted(model, feeds))
        assert "foreign" in {s.kind for s in each.profile(feeds, repeats=1).steps}


def test_outputs_of_unknown_shape_are_described_and_take_no_array(cache):
    model = found()
    with pytest.warns(RollerWarning):
        session = roller.compile_model(model, top_k=1, fallback="onnxruntime", progress=False)
    assert session.outputs == (TensorDescription("at", (2, None), "int64"), TensorDescription("sum", (), "float32"))
    assert repr(session).startswith("<Session loose: x [4, 8] -> at [2, ?], sum []")
    feeds, own = feeds_of(model), np.empty((), np.float32)
    at, total = wanted(model, feeds)
    for out in ({"sum": own}, [None, own]):
        result = session.run(feeds, out=out)
        assert result["sum"] is own and np.array_equal(result["at"], at)
        np.testing.assert_allclose(own, total, rtol=1e-5)
    with pytest.raises(LaunchError, match="the shape of 'at' is known only at run time"):
        session.run(feeds, out={"at": np.empty((2, 3), np.int64)})


def test_nothing_may_be_left_to_compile(cache):
    model = model_of([N("NonZero", ["x"], ["y"], "where")], {"x": (F, (4, 8))}, {"y": (I, [2, "n"])})
    with pytest.warns(RollerWarning):
        session = roller.compile_model(model, top_k=1, fallback="onnxruntime", progress=False)
    feeds = feeds_of(model)
    agree(session.run(None, feeds), wanted(model, feeds))


def test_a_gpu_has_them_from_the_host(tmp_path, cache):
    model = found()
    with pytest.warns(RollerWarning):
        made = roller.compile_model(model, "h200", top_k=1, fallback="onnxruntime", progress=False)
    made.save(tmp_path / "b", [make_random_expected_outputs(model, made.plan.program)])
    device = EmulatedDevice(check=False, arch="sm_90")
    results = run_bundle(tmp_path / "b", tmp_path / "r.json", device, samples=1)
    assert results["ok"], json.dumps(results["phases"]["check"], indent=1)
    session, feeds = roller.load_model(tmp_path / "b", device=device), feeds_of(model)
    agree(session.run(None, feeds), wanted(model, feeds))
    there = session.run(None, feeds, on_device=True)
    device.synchronize(device.current)
    assert all(device.holds(a) for a in there)
    agree([np.asarray(a) for a in there], wanted(model, feeds))


def test_two_chains_may_each_be_a_region():
    """Regions that read each other's known results would wait for each other: then they are one."""
    nodes = []
    for a, b in (("p", "q"), ("q", "p")):
        nodes += [N("NonZero", [f"x{a}"], [f"at{a}"], f"where_{a}"), N("Shape", [f"at{a}"], [f"s{a}"], f"shape_{a}"),
                  N("Mul", [f"at{a}", f"f{b}"], [f"y{a}"], f"mul_{a}"),
                  N("Slice", [f"s{a}", "one", "two"], [f"f{a}"], f"size_{a}")]  # fmt: skip
    ends = {"xp": (F, (4, 8)), "xq": (F, (2, 3))}, {"yp": (I, [2, "n"]), "yq": (I, [2, "m"])}
    model = model_of(nodes, *ends, [array("one", [1]), array("two", [2])])
    program = program_of(model)
    assert sum(isinstance(s, Foreign) for s in program.steps) == 1
    feeds = {"xp": np.eye(4, 8, dtype=np.float32), "xq": np.ones((2, 3), np.float32)}
    agree(list(evaluate_program(program, feeds).values()), wanted(model, feeds))
    apart = model_of([N("NonZero", [f"x{a}"], [f"at{a}"], f"where_{a}") for a in "pq"], ends[0],
                     {"atp": (I, [2, "n"]), "atq": (I, [2, "m"])})  # fmt: skip
    assert sum(isinstance(s, Foreign) for s in program_of(apart).steps) == 2


def test_batches_are_overridden_beside_them():
    model = model_of(
        [N("MatMul", ["x", "w0"], ["m"], "product"), N("NonZero", ["m"], ["at"], "where")],
        {"x": (F, ("n", 8))}, {"m": (F, ("n", 8)), "at": (I, [2, "k"])}, weights((8, 8)))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RollerWarning)
        program = partition_graph(read_folded_graph(model, batch=3, fallback="onnxruntime"), fallback="onnxruntime")
    assert program.values["x"].shape == (3, 8) and any(isinstance(s, Run) for s in program.steps)


def test_strings_do_not_leave_a_region():
    model = model_of([N("NonZero", ["x"], ["at"], "where"), N("Cast", ["at"], ["y"], "text", to=TensorProto.STRING)],
                     {"x": (F, (4, 8))}, {"y": (TensorProto.STRING, [2, "n"])})  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"'y' is no tensor of numbers"):
        read_folded_graph(model, fallback="onnxruntime")
