"""Models whose calls choose sizes: right at every size, one session, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import roller
from roller.errors import ArtifactError, LaunchError, ModelError, RollerError
from roller.model.range_session import RangeSession
from roller.onnx.ranges import ranges_of

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


def test_sizes_share_one_arena_of_the_largest(session):
    for batch in (3, 20):
        session.run(np.zeros((batch, 24), "float32"))
    assert len(session._arenas) == 1 and session._arenas[0].nbytes == session.arena_bytes
    assert session.at(batch=3) is session.at(batch=3)


def test_calls_that_do_not_fit_are_refused(session):
    with pytest.raises(LaunchError, match="'batch' from 1 to 20, got 21"):
        session.run(np.zeros((21, 24), "float32"))
    with pytest.raises(LaunchError, match="expected shape"):
        session.run(np.zeros((3, 25), "float32"))
    with pytest.raises(LaunchError, match="expected the sizes"):
        session.at(rows=3)
    with pytest.raises(ArtifactError, match="no format yet"):
        session.save("anywhere")


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"z": (("batch", 1, 4), 24)}, "no input 'z'"),
        ({"x": (("batch", 4, 1), 24)}, "range from 1 or more"),
        ({"x": (("batch", 0, 4), 24)}, "range from 1 or more"),
        ({"x": (("batch", 1), 24)}, "a number or a range"),
        ({"x": (("batch", 1, 2.5), 24)}, "a number or a range"),
    ],
)
def test_ranges_that_are_none_are_refused(shapes, text):
    with pytest.raises(ModelError, match=text):
        ranges_of(layers(), shapes)


def test_ranges_are_for_this_processor_alone_and_beside_nothing_else():
    shapes = {"x": (("batch", 1, 4), 24)}
    with pytest.raises(RollerError, match="this machine's processor"):
        roller.compile_model(layers(), "a100", shapes=shapes)
    with pytest.raises(RollerError, match="Leave it out"):
        roller.compile_model(layers(), shapes=shapes, batch=3)


def test_symbols_of_inputs_that_are_not_named_are_the_same_sizes():
    model = with_weights(LAYERS.replace("float[batch] scale", "float[batch, 3] scale"))
    found = ranges_of(model, {"x": (("batch", 2, 9), 24)})
    assert found.inputs == {"x": ("batch", 24), "scale": ("batch", 3)}
    assert found.at({"batch": 5}) == {"x": (5, 24), "scale": (5, 3)}
    assert ranges_of(model, {"x": (("batch", 7, 7), 24)}).inputs["scale"] == (7, 3)
