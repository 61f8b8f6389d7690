"""TensorFlow's frozen graphs, where tf2onnx and TensorFlow are installed."""

import numpy as np
import pytest

import roller
from roller.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore")
tf = pytest.importorskip("tensorflow", reason="TensorFlow is no dependency: pip install tensorflow-cpu tf2onnx")
pytest.importorskip("tf2onnx", reason="pip install tf2onnx")


def frozen(path):
    """Write a graph; return what computes it."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    rng = np.random.default_rng(0)
    filters, weights = (tf.constant(rng.standard_normal(s).astype("f")) for s in ((3, 3, 3, 8), (8, 5)))

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3], tf.float32, name="image")])
    def net(image):
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(image, filters, 1, "SAME")), 2, 2, "VALID")
        return tf.nn.softmax(tf.matmul(tf.reduce_mean(x, [1, 2]), weights), name="probabilities")

    made = convert_variables_to_constants_v2(net.get_concrete_function())
    tf.io.write_graph(made.graph, str(path.parent), path.name, as_text=False)
    return lambda x: made(tf.constant(x))[0].numpy()


@pytest.mark.slow
def test_a_frozen_graph_computes_what_tensorflow_does(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(tmp_path / "cache"))
    net = frozen(tmp_path / "net.pb")
    session = roller.compile_model(tmp_path / "net.pb", batch=2, top_k=1, deterministic=True, progress=False)
    x = np.random.default_rng(1).standard_normal((2, 8, 8, 3)).astype("f")
    assert session.name == "net" and [d.name for d in session.inputs] == ["image:0"]
    np.testing.assert_allclose(session.run(x), net(x), atol=1e-5)


def test_what_is_no_frozen_graph_is_told_how_to_become_one(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\xff")
    with pytest.raises(ModelError, match=r"saved_model\.pb: expected a frozen .* tf2onnx\.convert --saved-model"):
        roller.compile_model(tmp_path / "saved_model.pb")
