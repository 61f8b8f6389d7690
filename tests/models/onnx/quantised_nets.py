"""Small quantised models: nodes between DequantizeLinear and QuantizeLinear, written by hand."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from roller.models.onnx.partition_graph import partition_graph
from roller.models.onnx.read_model import read_onnx_graph
from roller.models.onnx.simplify_graph import fold_graph
from tests.models.onnx.lowering_oracle import EXACT
from tests.models.session.reference import evaluate_program

KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int16": TensorProto.INT16, "float32": TensorProto.FLOAT,
         "int32": TensorProto.INT32}  # fmt: skip


class Quantised:
    """A model being written; :meth:`real` and :meth:`stored` convert, :meth:`add` computes between them."""

    def __init__(self, opset=17, seed=0):
        self.opset, self.random = opset, np.random.default_rng(seed)
        self.nodes, self.inputs, self.constants, self.feeds = [], [], [], {}

    def name(self, op):
        return f"{op.lower()}{len(self.nodes)}"

    def add(self, op, *inputs, **attributes):
        name = self.name(op)
        self.nodes.append(helper.make_node(op, inputs, [name], f"{op}/{name}", **attributes))
        return name

    def constant(self, array):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def halved(self, shape, dtype="int8"):
        """Return integers whose products with bytes ONNX Runtime adds up exactly, with or without VNNI."""
        return (self.integers(shape, dtype) // 2).astype(dtype)

    def integers(self, shape, dtype="uint8"):
        info = np.iinfo(dtype)
        return self.random.integers(info.min, info.max, shape, endpoint=True).astype(dtype)

    def input(self, shape, dtype="uint8"):
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, KINDS[dtype], shape))
        floats = dtype == "float32"
        self.feeds[name] = self.random.standard_normal(shape).astype(dtype) if floats else self.integers(shape, dtype)
        return name

    def told(self, scale, zero, dtype):
        parts = [self.constant(np.asarray(scale, np.float32))]
        return parts if zero is None else [*parts, self.constant(np.asarray(zero, dtype))]

    def real(self, stored, scale, zero=0, dtype="uint8", **attributes):
        return self.add("DequantizeLinear", stored, *self.told(scale, zero, dtype), **attributes)

    def stored(self, real, scale, zero=0, dtype="uint8", **attributes):
        return self.add("QuantizeLinear", real, *self.told(scale, zero, dtype), **attributes)

    def weights(self, shape, axis=0, per_channel=True, dtype="int8", zero=None):
        scale = self.random.uniform(0.005, 0.02, shape[axis] if per_channel else ()).astype(np.float32)
        zeros = np.full(np.shape(scale), 0 if zero is None else zero, dtype)
        at = {"axis": axis} if per_channel else {}
        held = self.integers(shape, dtype)
        return self.real(self.constant(held), scale, zeros, dtype, **at), scale

    def bias(self, scale, count):
        held = self.random.integers(-20000, 20000, count).astype(np.int32)
        at = {"axis": 0} if np.ndim(scale) else {}
        return self.real(self.constant(held), scale, np.zeros(np.shape(scale), np.int32), "int32", **at)

    def model(self, *outputs):
        ends = [helper.make_empty_tensor_value_info(n) for n in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, ends, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if self.opset > 20 else 8)


def runtime(model, feeds, *, fused):
    """Return what ONNX Runtime makes of a model: its integer kernels, or the operators as they are written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry(*EXACT)
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fused else levels.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def program_of(model):
    """Return the program of a model."""
    return partition_graph(fold_graph(read_onnx_graph(model.SerializeToString())))


def results(model, feeds):
    """Return what the program of a model computes, evaluated in float64."""
    return list(evaluate_program(program_of(model), feeds).values())


def stored_dtypes(program):
    """Return the dtypes of what kernels write, in order."""
    return [t.dtype for k in dict.fromkeys(s.kernel for s in program.steps if hasattr(s, "kernel"))
            for t in program.kernels[k].expression.output_tensors]  # fmt: skip
