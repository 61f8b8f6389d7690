"""Imports frozen TensorFlow graphs through tf2onnx."""

from __future__ import annotations

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from roller.errors import ModelError
from roller_runtime.core.files import read_file


def from_tensorflow(path: Path) -> onnx.ModelProto:
    """Convert a frozen TensorFlow graph (``.pb``) to ONNX, from placeholders to the nodes that no other node reads."""
    try:
        import tensorflow as tf
        from tf2onnx import convert
    except ImportError as error:
        raise ModelError(
            f"{path.name}: reading TensorFlow graphs needs tf2onnx and tensorflow ({error}). Install them, or convert "
            "the graph where they are: python -m tf2onnx.convert --graphdef ... --output model.onnx."
        ) from None
    try:
        definition = tf.compat.v1.GraphDef.FromString(read_file(path))
    except (OSError, ValueError, DecodeError) as error:
        raise ModelError(
            f"{path.name}: expected a frozen TensorFlow graph, and it cannot be read as one ({error}). Where it is a "
            "saved model, convert its folder: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx."
        ) from None
    read = {name.split(":")[0].lstrip("^") for node in definition.node for name in node.input}
    inputs = [f"{n.name}:0" for n in definition.node if n.op == "Placeholder"]
    outputs = [f"{n.name}:0" for n in definition.node if n.name not in read and n.op not in ("Const", "NoOp")]
    try:
        model, _ = convert.from_graph_def(definition, input_names=inputs, output_names=outputs)
    except Exception as error:  # noqa: BLE001 - tf2onnx raises whatever its handlers raise
        raise ModelError(f"{path.name}: tf2onnx cannot convert it: {error}") from None
    assert isinstance(model, onnx.ModelProto)
    model.graph.name = path.stem
    return model
