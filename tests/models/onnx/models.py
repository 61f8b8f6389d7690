"""ONNX models of a few nodes, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, ValueInfoProto, helper

from tests.models.onnx.lowering_oracle import EXACT

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
#: A value: as onnx has it, or its name, element type and shape (``None``: unknown).
Typed = ValueInfoProto | tuple[str, int, Sequence[int | str] | None]


def info(name: str, kind: int = FLOAT, shape: Sequence[int | str] | None = None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def body(
    nodes: Sequence[onnx.NodeProto], inputs: Iterable[Typed], outputs: Iterable[Typed],
    weights: Mapping[str, object] | Iterable[TensorProto | tuple[str, object]] = (), name: str = "body",
) -> onnx.GraphProto:  # fmt: skip
    """Return a graph; weights are tensors, or arrays by name."""
    pairs = weights.items() if isinstance(weights, Mapping) else weights
    held = [w if isinstance(w, TensorProto) else onnx.numpy_helper.from_array(np.asarray(w[1]), w[0]) for w in pairs]
    return helper.make_graph(nodes, name, [_typed(i) for i in inputs], [_typed(o) for o in outputs], held)


def model_of(
    nodes: Sequence[onnx.NodeProto], inputs: Iterable[Typed], outputs: Iterable[Typed],
    weights: Mapping[str, object] | Iterable[TensorProto | tuple[str, object]] = (),
    *, opset: int = 17, imports: Iterable[onnx.OperatorSetIdProto] = (), **more: object,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model; ``imports`` are operator sets beside ONNX's own, ``more`` what ``make_model`` takes."""
    opsets = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(body(nodes, inputs, outputs, weights, "m"), opset_imports=opsets, ir_version=10, **more)


def runtime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, optimised: bool = True) -> list[np.ndarray]:
    """Return what ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(*EXACT)
    options.intra_op_num_threads = 1
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def _typed(value: Typed) -> ValueInfoProto:
    return value if isinstance(value, ValueInfoProto) else info(*value)
