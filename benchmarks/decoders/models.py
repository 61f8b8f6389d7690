"""Small decoders in ONNX, in the forms in which exporters write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Symbols that exporters of transformers give to the dimensions of a decoder.
BATCH, NEW, PAST, TOTAL = (
    "batch_size",
    "sequence_length",
    "past_sequence_length",
    "past_sequence_length + sequence_length",
)


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder.

    Parameters
    ----------
    key_heads
        Number of heads of keys and values; ``0`` for as many as ``heads``.
    positions
        Largest number of tokens in a conversation.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 97
    positions: int = 64
    key_heads: int = 0

    @property
    def head_width(self) -> int:
        """Number of elements per head."""
        return self.width // self.heads

    @property
    def cache_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.key_heads or self.heads


@dataclass
class _Writer:
    """Nodes and weights of a model under construction."""

    random: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.several(op, [*inputs], [out or f"v{len(self.nodes)}"], **attributes)[0]

    def several(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        self.nodes.append(helper.make_node(op, inputs, outputs, f"n{len(self.nodes)}_{op}", **attributes))
        return outputs

    def constant(self, array: Any) -> str:
        """Add a constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add random weights."""
        scale = 1 / np.sqrt(shape[0]) if scale is None else scale
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def linear(self, x: str, rows: int, columns: int) -> str:
        """Add a product with weights and a bias."""
        return self.add("Add", self.add("MatMul", x, self.weight(rows, columns)), self.weight(columns, scale=0.02))

    def norm(self, x: str, width: int) -> str:
        """Add a layer normalization."""
        scale = self.constant((1 + 0.1 * self.random.standard_normal(width)).astype(np.float32))
        return self.add("LayerNormalization", x, scale, self.weight(width, scale=0.02), axis=-1)

    def gelu(self, x: str) -> str:
        """Add the tanh form of GELU, as GPT-2 writes it."""
        cube = self.add("Mul", self.add("Mul", x, x), x)
        inner = self.add("Add", x, self.add("Mul", cube, self.constant(np.float32(0.044715))))
        inner = self.add("Tanh", self.add("Mul", inner, self.constant(np.float32(np.sqrt(2 / np.pi)))))
        return self.add("Mul", self.add("Mul", x, self.constant(np.float32(0.5))),
                        self.add("Add", inner, self.constant(np.float32(1))))  # fmt: skip


def gpt2(sizes: DecoderSizes | None = None, seed: int = 0) -> onnx.ModelProto:
    """Return a decoder of GPT-2's structure, with random weights.

    Inputs are ``input_ids``, ``attention_mask``, ``position_ids`` and, for each layer, ``past_key_values.N.key`` and
    ``.value``; outputs are ``logits`` and ``present.N.key`` and ``.value``, each the past joined with the new rows.
    """
    s = sizes or DecoderSizes()
    w = _Writer(np.random.default_rng(seed))
    table = w.weight(s.vocabulary, s.width, scale=0.3)
    ids, positions = (
        w.add("Gather", table, "input_ids"),
        w.add("Gather", w.weight(s.positions, s.width, scale=0.1), "position_ids"),
    )
    x = w.add("Add", ids, positions)
    kept = w.add("Cast", w.add("Unsqueeze", "attention_mask", w.constant([1, 2])), to=TensorProto.FLOAT)
    hidden = w.add("Mul", w.add("Sub", w.constant(np.float32(1)), kept), w.constant(np.float32(-1e9)))
    past = w.add("Gather", w.add("Shape", "past_key_values.0.key"), w.constant([2]), axis=0)
    total = w.add("Add", past, w.add("Gather", w.add("Shape", "input_ids"), w.constant([1]), axis=0))
    causal = w.constant(np.tril(np.ones((1, 1, s.positions, s.positions), bool)))
    causal = w.add("Slice", causal, past, total, w.constant([2]))
    causal = w.add("Slice", causal, w.constant([0]), total, w.constant([3]))
    for layer in range(s.layers):
        x = w.add("Add", x, _attention(w, s, w.norm(x, s.width), layer, causal, hidden))
        inner = w.gelu(w.linear(w.norm(x, s.width), s.width, 4 * s.width))
        x = w.add("Add", x, w.linear(inner, 4 * s.width, s.width))
    w.add("MatMul", w.norm(x, s.width), w.add("Transpose", table, perm=[1, 0]), out="logits")
    return _model(w, s, "gpt2")


def _attention(w: _Writer, s: DecoderSizes, x: str, layer: int, causal: str, hidden: str) -> str:
    projected = w.linear(x, s.width, 3 * s.width)
    parts = w.several("Split", [projected], [f"q{layer}", f"k{layer}", f"v_{layer}"], axis=2, num_outputs=3)
    shape = w.constant([0, 0, s.heads, s.head_width])
    query, key, value = (w.add("Transpose", w.add("Reshape", p, shape), perm=[0, 2, 1, 3]) for p in parts)
    key = w.add("Concat", f"past_key_values.{layer}.key", key, out=f"present.{layer}.key", axis=2)
    value = w.add("Concat", f"past_key_values.{layer}.value", value, out=f"present.{layer}.value", axis=2)
    scores = w.add("MatMul", query, w.add("Transpose", key, perm=[0, 1, 3, 2]))
    scores = w.add("Div", scores, w.constant(np.float32(np.sqrt(s.head_width))))
    scores = w.add("Where", causal, scores, w.constant(np.float32(np.finfo(np.float32).min)))
    shares = w.add("Softmax", w.add("Add", scores, hidden), axis=-1)
    y = w.add("Transpose", w.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return w.linear(w.add("Reshape", y, w.constant([0, 0, s.width])), s.width, s.width)


def _model(w: _Writer, s: DecoderSizes, name: str) -> onnx.ModelProto:
    integer, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", integer, [BATCH, NEW]),
        helper.make_tensor_value_info("attention_mask", integer, [BATCH, TOTAL]),
        helper.make_tensor_value_info("position_ids", integer, [BATCH, NEW]),
    ]
    outputs = [helper.make_tensor_value_info("logits", real, [BATCH, NEW, s.vocabulary])]
    for layer in range(s.layers):
        for kind in ("key", "value"):
            shape = [BATCH, s.cache_heads, PAST, s.head_width]
            inputs.append(helper.make_tensor_value_info(f"past_key_values.{layer}.{kind}", real, shape))
            outputs.append(
                helper.make_tensor_value_info(f"present.{layer}.{kind}", real, [*shape[:2], TOTAL, shape[3]])
            )
    graph = helper.make_graph(w.nodes, name, inputs, outputs, w.weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made
