"""Models whose calls choose sizes: right at every size, one session, refusals."""

from __future__ import annotations

import logging
import threading

import numpy as np
import onnx
import pytest

import roller
from roller.errors import ArtifactError, LaunchError, ModelError, RollerError
from roller.models.compile_for_ranges import parse_ranges
from roller_runtime.session.range_session import RangeSession

ORT = pytest.importorskip("onnxruntime")

LAYERS = """<ir_version: 8, opset_import: ["": 17]>
layers (float[batch, 24] x, float[batch] scale) => (float[batch, 10] y) {
    hidden = MatMul(x, w1)
    active = Relu(hidden)
    y = MatMul(active, w2)
}"""


def with_weights(text):
    """Return a model with its weights: small whole numbers, so that sums are exact."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (24, 33)), ("w2", (33, 10))):
        weights = rng.integers(-4, 5, shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


def layers():
    """Two products and what lies between them."""
    return with_weights(LAYERS.replace(", float[batch] scale", ""))


@pytest.fixture(scope="module")
def session():
    return roller.compile_model(layers(), shapes={"x": (("batch", 1, 20), 24)})


def test_every_size_is_right(session):
    assert isinstance(session, RangeSession)
    known = ORT.InferenceSession(layers().SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for batch in (*range(1, 21), 20, 1):
        x = rng.integers(-4, 5, (batch, 24)).astype("float32")
        (meant,) = known.run(None, {"x": x})
        np.testing.assert_array_equal(session.run({"x": x})["y"], meant, str(batch))
        np.testing.assert_array_equal(session.run(x), meant)
        np.testing.assert_array_equal(session(None, {"x": x})[0], meant)


def test_calls_are_counted_by_classes_of_sizes(session):
    before = session.metrics()
    x = {n: np.ones((n, 24), "float32") for n in (1, 3, 4, 20)}
    for n in (1, 3, 4, 4, 20):
        session.run(x[n])
    session.at(batch=3).run({"x": x[3]})
    for wrong in (np.ones((21, 24), "float32"), np.ones((3, 23), "float32"), np.ones((3, 24), "int32")):
        with pytest.raises(LaunchError):
            session.run(wrong)
    found = session.metrics()
    assert (found.calls - before.calls, found.failures - before.failures, found.in_progress) == (9, 3, 0)
    assert found.calls == sum(m.calls for m in found.by_sizes.values()) + session._meters.unknown.metrics().failures

    def added(name):
        return found.by_sizes[name].calls - (before.by_sizes[name].calls if name in before.by_sizes else 0)

    assert {name: added(name) for name in ("batch=1", "batch=3..4", "batch=17..20")} == {
        "batch=1": 1, "batch=3..4": 6, "batch=17..20": 1,
    }  # fmt: skip
    assert found.new_sizes >= 3 and found.new_sizes_s > 0
    assert 'roller_session_calls_total{model="layers",sizes="batch=1"}' in found.prometheus()


def test_threads_at_all_sizes_hold_one_arena_each_and_every_call_is_counted():
    session = roller.compile_model(layers(), shapes={"x": (("batch", 1, 20), 24)}, deterministic=True)
    before, x = session.metrics().calls, [np.ones((n, 24), "float32") for n in range(1, 21)]

    def work(first):
        for n in range(500):
            session.run(x[(first + n) % 20])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = session.metrics()
    assert (found.calls - before, found.in_progress) == (4000, 0)
    assert found.arenas == len(session._arenas) <= 8 and found.arena_bytes == found.arenas * session.arena_bytes


def test_shapes_that_came_before_find_their_session_at_once(session, monkeypatch):
    x, seen = np.ones((7, 24), "float32"), []
    looked = session._sizes_of_arrays
    monkeypatch.setattr(session, "_sizes_of_arrays", lambda arguments: seen.append(arguments) or looked(arguments))
    meant = session.run({"x": x})["y"]
    seen.clear()
    np.testing.assert_array_equal(session.run({"x": x})["y"], meant)
    np.testing.assert_array_equal(session.run(x), meant)
    assert not seen
    for _ in range(2):  # what is refused once is refused again
        with pytest.raises(LaunchError, match="expected"):
            session.run(np.ones((7, 23), "float32"))
        with pytest.raises(LaunchError, match="expected"):
            session.run(np.ones((7, 24), "int32"))
    session._ready.clear()
    session._by_shapes.clear()
    np.testing.assert_array_equal(session.run(x), meant)


def test_a_range_of_one_and_two_has_both():
    """No size of 1 is looked at when a model is read, so one alone would be left."""
    made = roller.compile_model(layers(), shapes={"x": (("batch", 1, 2), 24)}, deterministic=True)
    known = ORT.InferenceSession(layers().SerializeToString(), providers=["CPUExecutionProvider"])
    assert made.ranges == {"batch": (1, 2)}
    for batch in (1, 2):
        x = np.random.default_rng(batch).integers(-4, 5, (batch, 24)).astype("float32")
        np.testing.assert_array_equal(made.run(x), known.run(None, {"x": x})[0])
    with pytest.raises(LaunchError, match="expected 'batch' from 1 to 2, got 3"):
        made.run(np.ones((3, 24), "float32"))


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_positions_are_right_whatever_the_length_they_are_found_in(name):
    """The length is a number of 64 bits there, beside sizes of 32."""
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[b, s] x) => (int64[b] y) {{ y = {name}<axis = 1, keepdims = 0>(x) }}"""
    made = roller.compile_model(
        onnx.parser.parse_model(text), shapes={"x": (("b", 1, 9), ("s", 1, 70))}, deterministic=True
    )
    rng = np.random.default_rng(0)
    for rows, length in ((1, 1), (9, 70), (2, 64), (3, 33), (9, 7)):
        x = rng.integers(0, 9, (rows, length)).astype("float32")
        np.testing.assert_array_equal(made.run(x), getattr(np, name.lower())(x, axis=1))


def test_a_profile_has_what_is_predicted_at_its_sizes(session):
    found = session.profile({"x": np.ones((7, 24), "float32")}, repeats=2)
    assert all(s.predicted_s > 0 for s in found.steps)
    assert found.predicted_s == sum(s.predicted_s for s in found.steps)


def test_sizes_share_one_arena_of_the_largest(session):
    session.run(np.zeros((3, 24), "float32"))
    held = len(session._arenas)  # other tests call from several threads at once
    for batch in (3, 20, 11):
        session.run(np.zeros((batch, 24), "float32"))
    assert len(session._arenas) == held and {a.nbytes for a in session._arenas} == {session.arena_bytes}
    assert session.at(batch=3) is session.at(batch=3)


def test_calls_that_do_not_fit_are_refused(session):
    with pytest.raises(LaunchError, match="'batch' from 1 to 20, got 21"):
        session.run(np.zeros((21, 24), "float32"))
    with pytest.raises(LaunchError, match="expected shape"):
        session.run(np.zeros((3, 25), "float32"))
    for array in (np.zeros(24, "float32"), np.zeros((), "float32")):
        with pytest.raises(LaunchError, match=r"'x': expected an array of shape \(batch, 24\), got \("):
            session.run({"x": array})
    with pytest.raises(LaunchError, match=r"for each of \['batch'\], got at\(rows=3\). Use at\(batch=1\)"):
        session.at(rows=3)
    assert session.at(batch=3) is session.at(3)
    for values, named in (((), {"batch": 3, "rows": 2}), ((3,), {"batch": 3}), ((3, 4), {}), ((), {})):
        with pytest.raises(LaunchError, match="expected one whole number for each"):
            session.at(*values, **named)
    for size in (3.5, "3", True, None):
        with pytest.raises(LaunchError, match="expected one whole number for each"):
            session.at(batch=size)
    for proofs in (0, -1, True, "all"):
        with pytest.raises(ArtifactError, match="proofs: expected a number of at least 1, or None"):
            session.save("anywhere", proofs=proofs)


def test_what_a_session_takes_and_gives(session):
    assert session.ranges == {"batch": (1, 20)} and session.doubt == ""
    assert [(d.name, d.shape, d.dtype) for d in session.inputs] == [("x", ("batch", 24), "float32")]
    (given,) = session.outputs
    assert (given.name, given.dtype) == ("y", "float32") and given.shape[0] == "batch"
    assert given.shape[1:] == session.at(3).outputs[0].shape[1:]
    assert session.get_inputs() == list(session.inputs) and session.get_outputs() == list(session.outputs)


class Exporter:
    """An array that DLPack alone knows: it says no shape."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_sizes_are_those_of_arrays_that_only_export_their_memory(session):
    x = np.ones((7, 24), "float32")
    np.testing.assert_array_equal(session.run({"x": Exporter(x)})["y"], session.run(x))


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"x": (("batch", 1, 10**7), 24)}, "at most 1048576"),
        ({"z": (("batch", 1, 4), 24)}, "no input 'z'"),
        ({"x": (("batch", 4, 1), 24)}, "range of sizes of at least 1"),
        ({"x": (("batch", 0, 4), 24)}, "range of sizes of at least 1"),
        ({"x": (("batch", 1), 24)}, "a number or a range"),
        ({"x": (("batch", 1, 2.5), 24)}, "a number or a range"),
        ({"x": (range(1, 5), 24)}, r"a range with its name, got range\(1, 5\). Write \(name, smallest, largest\)"),
        ({"x": (("batch", range(1, 9, 2)), 24)}, r"multiples of the step 2, got .*range\(2, 8, 2\)"),
        ({"x": (("batch", range(9, 1, -2)), 24)}, "a number or a range"),
        ({"x": (("batch", range(1, 10**30)), 24)}, "at most 1048576"),
        ({"x": (("", 1, 4), 24)}, "a number or a range"),
        ({"x": {"batch": (1, 4)}}, "the dimensions of 'x' in their order, got .*Write"),
        ({"x": (("batch", 1, 4),)}, r"expected 2 dimensions of 'x', .* got 1: \(\('batch', 1, 4\),\)"),
    ],
)
def test_ranges_that_are_none_are_refused(shapes, text):
    with pytest.raises(ModelError, match=text):
        parse_ranges(layers(), shapes)


@pytest.mark.parametrize("bounds", [(1, 4), (("batch", 1, 4),)])
def test_a_symbol_in_place_of_an_input_is_explained(bounds):
    with pytest.raises(ModelError, match=r"has no input 'batch'; it is a dimension of 'x'\. Write "):
        roller.compile_model(layers(), shapes={"batch": bounds})


def test_ranges_are_for_this_processor_alone_and_beside_nothing_else():
    shapes = {"x": (("batch", 1, 4), 24)}
    with pytest.raises(RollerError, match="this machine's processor"):
        roller.compile_model(layers(), "a100", shapes=shapes)
    for name, value in {"batch": 3, "top_k": 2, "prove": True, "budget_s": 5.0, "fallback": "onnxruntime"}.items():
        with pytest.raises(RollerError, match=f"beside ranges, got {name}. Leave it out"):
            roller.compile_model(layers(), shapes=shapes, **{name: value})


def test_a_range_may_be_one_of_python():
    pair, python = ({"x": (("batch", *r), 24)} for r in ((1, 4), (range(1, 5),)))
    assert parse_ranges(layers(), pair) == parse_ranges(layers(), python)


def test_one_size_alone_is_no_range():
    with pytest.raises(ModelError, match="a range of several sizes"):
        roller.compile_model(layers(), shapes={"x": (("batch", 4, 4), 24)})


def test_sizes_may_be_called_as_lengths_that_follow_are():
    """Half of one size is an own length, whatever names sizes have."""
    model = drawn(IMAGE)
    shapes = {"x": (("batch", 1, 3), 3, ("height", 16, 40), ("height_at_0", 16, 40))}
    session = roller.compile_model(model, shapes=shapes, deterministic=True)
    known = ORT.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal((2, 3, 18, 17), "float32")
    np.testing.assert_allclose(session.run({"x": x})["y"], known.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_symbols_of_inputs_that_are_not_named_are_the_same_sizes():
    model = with_weights(LAYERS.replace("float[batch] scale", "float[batch, 3] scale"))
    found = parse_ranges(model, {"x": (("batch", 2, 9), 24)})
    assert found.inputs == {"x": ("batch", 24), "scale": ("batch", 3)}
    assert found.at({"batch": 5}) == {"x": (5, 24), "scale": (5, 3)}
    assert parse_ranges(model, {"x": (("batch", 7, 7), 24)}).inputs["scale"] == (7, 3)


ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
attention (float[batch, sequence, 8] x) => (float[batch, sequence, 8] y) <float[8] one, float[8] none> {
    normal = LayerNormalization<axis = -1>(x, one, none)
    turned = Transpose<perm = [0, 2, 1]>(normal)
    scores = MatMul(normal, turned)
    shares = Softmax<axis = -1>(scores)
    mixed = MatMul(shares, normal)
    y = Add(mixed, x)
}"""

MEANS = """<ir_version: 8, opset_import: ["": 17]>
means (float[batch, length, 6] x) => (float[batch, 6] y, float[batch, length, 6] z) {
    y = ReduceMean<axes = [1], keepdims = 0>(x)
    z = Softmax<axis = 1>(x)
}"""

IMAGE = """<ir_version: 8, opset_import: ["": 17]>
image (float[batch, 3, height, width] x) => (float[batch, 9] y) <float[8, 3, 3, 3] w, float[9, 8, 3, 3] v> {
    strided = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)
    active = Relu(strided)
    pooled = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(active)
    narrow = Conv<pads = [0, 0, 1, 1]>(pooled, v)
    mean = GlobalAveragePool(narrow)
    y = Flatten(mean)
}"""

BLOCKS = """<ir_version: 8, opset_import: ["": 17]>
blocks (float[batch, 16, height, width] x) => (float[batch, 16] y) <float[16, 16, 3, 3] v, float[16, 16, 3, 3] w> {
    inner = Conv<pads = [1, 1, 1, 1]>(x, v)
    active = Relu(inner)
    outer = Conv<pads = [1, 1, 1, 1]>(active, w)
    mean = GlobalAveragePool(outer)
    y = Flatten(mean)
}"""

KINDS = {
    "attention": (ATTENTION, {"x": (("batch", 1, 3), ("sequence", 1, 40), 8)}, 30),
    "means": (MEANS, {"x": (("batch", 1, 4), ("length", 1, 30), 6)}, 40),
    "image": (IMAGE, {"x": (("batch", 1, 3), 3, ("height", 16, 40), ("width", 16, 40))}, 40),
    "blocks": (BLOCKS, {"x": (("batch", 1, 3), 16, ("height", 12, 40), ("width", 12, 40))}, 30),
}


def drawn(text):
    """Return a model whose declared constants are drawn."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        weights = rng.standard_normal(shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, value.name))
    del model.graph.value_info[:]
    return model


def held_against(kind, count):
    """Compile a model over its ranges, and hold it against ONNX Runtime at its corners and ``count`` other sizes."""
    text, shapes, _ = KINDS[kind]
    model = drawn(text)
    session = roller.compile_model(model, shapes=shapes, deterministic=True)
    known = ORT.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ends = session.plan.ends
    rng = np.random.default_rng(1)
    several = [tuple(ends[n][k >> i & 1] for i, n in enumerate(ends)) for k in range(1 << len(ends))]
    several += [tuple(int(rng.integers(low, high + 1)) for low, high in ends.values()) for _ in range(count)]
    for values in several:
        sizes = dict(zip(ends, values, strict=True))
        x = rng.standard_normal([sizes[d] if isinstance(d, str) else d for d in session.plan.inputs["x"]], "float32")
        for found, meant in zip(session.run({"x": x}).values(), known.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found, meant, rtol=1e-4, atol=1e-5, err_msg=str(sizes))
    return session


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_models_are_right(kind):
    session = held_against(kind, KINDS[kind][2])
    values = session.at(*(high for _, high in session.ranges.values())).plan.program.values.values()
    assert kind != "blocks" or any(len(v.shape) == 5 for v in values)  # channels in blocks at all sizes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.exhaustive] * (k == "blocks")) for k in KINDS])
def test_kinds_of_models_are_right_at_hundreds_of_sizes(kind):
    session = held_against(kind, 300)
    assert all(len(several) <= 8 for several in session.plan.kernels.values())


DOUBLED = """<ir_version: 8, opset_import: ["": 17]>
pyramid (float[1, 4, height, width] x) => (float[1, 4, h, w] y) {
    small = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, k)
    smaller = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(small)
    scales = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}> ()
    doubled = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(smaller, , scales)
    y = Add(small, doubled)
}"""


def test_sizes_with_a_step_are_its_multiples(tmp_path):
    """Maps that are halved and doubled again fit only where the sizes are multiples of four."""
    model = onnx.parser.parse_model(DOUBLED)
    kernel = np.random.default_rng(0).integers(-3, 4, (4, 4, 3, 3)).astype("float32")
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "k"))
    dims = (1, 4, ("height", range(16, 41, 4)), ("width", range(8, 33, 8)))
    made = roller.compile_model(model, shapes={"x": dims}, deterministic=True)
    assert made.ranges == {"height": (16, 40), "width": (8, 32)} and made.steps == {"height": 4, "width": 8}
    assert "height from 16 to 40 in steps of 4" in repr(made)
    known = ORT.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = roller.load_model(made.save(tmp_path / "saved"))
    for height in range(16, 41, 4):
        for width in range(8, 33, 8):
            x = np.random.default_rng(height * width).integers(-4, 5, (1, 4, height, width)).astype("float32")
            for session in (made, loaded):
                np.testing.assert_array_equal(session.run(x), known.run(None, {"x": x})[0])
    assert loaded.at(height=20, width=8).inputs[0].shape == (1, 4, 20, 8)
    for session in (made, loaded):
        with pytest.raises(LaunchError, match="'height' from 16 to 40 in multiples of 4, got 18"):
            session.at(height=18, width=8)
        with pytest.raises(LaunchError, match="'width' from 8 to 32 in multiples of 8, got 12"):
            session.run(np.ones((1, 4, 16, 12), "float32"))
    with pytest.raises(ModelError, match=r"multiples of the step 4, got .*\('height', range\(12, 39, 4\)\)"):
        parse_ranges(model, {"x": (1, 4, ("height", range(10, 41, 4)), 8)})


def test_sizes_that_are_prepared_are_logged_once(session, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("roller"), "propagate", True)  # another test may leave its settings
    caplog.set_level(logging.DEBUG, logger="roller.session")
    session._ready.clear()
    session._by_shapes.clear()
    for _ in range(3):
        session.run(np.ones((7, 24), "float32"))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("roller.session", "DEBUG")
    assert record.getMessage().startswith("layers: prepared batch=7 in ")
