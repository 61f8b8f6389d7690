"""Small decoders in ONNX, in the forms in which exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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


#: Domain of ONNX Runtime's own operators.
CONTRIB = "com.microsoft"
#: Forms of attention: by products and Concat, as exporters of PyTorch write it; as an operator of ONNX; as ONNX
#: Runtime's operators.
FORMS = ("concat", "attention", "multihead", "grouped")


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
    block: int = 0
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
        return self.add("Add", self.product(x, rows, columns), self.weight(columns, scale=0.02))

    def product(self, x: str, rows: int, columns: int) -> str:
        """Add a product with weights, of 4 bits in blocks if the model has such."""
        if not self.block:
            return self.add("MatMul", x, self.weight(rows, columns))
        blocks = rows // self.block
        packed = self.constant(self.random.integers(0, 256, (columns, blocks, self.block // 2), np.uint8))
        scales = self.random.random(columns * blocks).astype(np.float32) * np.float32(0.4 / np.sqrt(rows))
        return self.add("MatMulNBits", x, packed, self.constant(scales), domain=CONTRIB, N=columns, K=rows, bits=4,
                        block_size=self.block)  # fmt: skip

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


def decoder(sizes: DecoderSizes | None = None, form: str = "concat", seed: int = 0, block: int = 0) -> onnx.ModelProto:
    """Return a decoder of GPT-2's structure, with random weights.

    Inputs are ``input_ids``, ``attention_mask``, ``position_ids`` (unless attention rotates) and, for each layer,
    ``past_key_values.N.key`` and ``.value``; outputs are ``logits`` and ``present.N.key`` and ``.value``, each the past
    joined with the new rows.

    Parameters
    ----------
    form
        One of :data:`FORMS`.
    block
        Block of 4-bit weights along their rows; 0 for float32 weights.
    """
    s = sizes or DecoderSizes()
    w = _Writer(np.random.default_rng(seed), block)
    table = w.weight(s.vocabulary, s.width, scale=0.3)
    x = w.add("Gather", table, "input_ids")
    if form != "grouped":
        x = w.add("Add", x, w.add("Gather", w.weight(s.positions, s.width, scale=0.1), "position_ids"))
    attention = {
        "concat": _concat_attention, "attention": _onnx_attention, "multihead": _multi_head_attention,
        "grouped": _grouped_attention,
    }[form](w, s)  # fmt: skip
    for layer in range(s.layers):
        x = w.add("Add", x, w.linear(attention(w.norm(x, s.width), layer), s.width, s.width))
        inner = w.gelu(w.linear(w.norm(x, s.width), s.width, 4 * s.width))
        x = w.add("Add", x, w.linear(inner, 4 * s.width, s.width))
    w.add("MatMul", w.norm(x, s.width), w.add("Transpose", table, perm=[1, 0]), out="logits")
    return _model(w, s, form)


Attention: TypeAlias = Callable[[str, int], str]


def _hidden_terms(w: _Writer) -> str:
    """Add the terms that hide padding: 0 where the attention mask is 1, otherwise a large negative number."""
    kept = w.add("Cast", w.add("Unsqueeze", "attention_mask", w.constant([1, 2])), to=TensorProto.FLOAT)
    return w.add("Mul", w.add("Sub", w.constant(np.float32(1)), kept), w.constant(np.float32(-1e9)))


def _projections(w: _Writer, s: DecoderSizes, x: str, layer: int, apart: bool) -> list[str]:
    """Add queries, keys and values of shape ``(batch, new, width)``, or of heads if ``apart``."""
    widths = np.array([s.heads, s.cache_heads, s.cache_heads], np.int64) * s.head_width
    projected = w.linear(x, s.width, int(widths.sum()))
    names = [f"{n}_{layer}" for n in ("query", "key", "value")]
    parts = w.several("Split", [projected, w.constant(widths)], names, axis=2)
    if not apart:
        return parts
    counts = (s.heads, s.cache_heads, s.cache_heads)
    several = (w.add("Reshape", p, w.constant([0, 0, n, s.head_width])) for p, n in zip(parts, counts, strict=True))
    return [w.add("Transpose", p, perm=[0, 2, 1, 3]) for p in several]


def _concat_attention(w: _Writer, s: DecoderSizes) -> Attention:
    hidden = _hidden_terms(w)
    past = w.add("Gather", w.add("Shape", "past_key_values.0.key"), w.constant([2]), axis=0)
    total = w.add("Add", past, w.add("Gather", w.add("Shape", "input_ids"), w.constant([1]), axis=0))
    causal = w.constant(np.tril(np.ones((1, 1, s.positions, s.positions), bool)))
    causal = w.add("Slice", causal, past, total, w.constant([2]))
    causal = w.add("Slice", causal, w.constant([0]), total, w.constant([3]))

    def attend(x: str, layer: int) -> str:
        query, key, value = _projections(w, s, x, layer, True)
        key = w.add("Concat", f"past_key_values.{layer}.key", key, out=f"present.{layer}.key", axis=2)
        value = w.add("Concat", f"past_key_values.{layer}.value", value, out=f"present.{layer}.value", axis=2)
        scores = w.add("MatMul", query, w.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = w.add("Div", scores, w.constant(np.float32(np.sqrt(s.head_width))))
        scores = w.add("Where", causal, scores, w.constant(np.float32(np.finfo(np.float32).min)))
        shares = w.add("Softmax", w.add("Add", scores, hidden), axis=-1)
        y = w.add("Transpose", w.add("MatMul", shares, value), perm=[0, 2, 1, 3])
        return w.add("Reshape", y, w.constant([0, 0, s.width]))

    return attend


def _ends(layer: int) -> tuple[list[str], list[str]]:
    kinds = ("key", "value")
    return [f"past_key_values.{layer}.{k}" for k in kinds], [f"present.{layer}.{k}" for k in kinds]


def _onnx_attention(w: _Writer, s: DecoderSizes) -> Attention:
    hidden = _hidden_terms(w)

    def attend(x: str, layer: int) -> str:
        past, present = _ends(layer)
        inputs = [*_projections(w, s, x, layer, False), hidden, *past]
        return w.several("Attention", inputs, [f"attended_{layer}", *present], q_num_heads=s.heads,
                         kv_num_heads=s.cache_heads)[0]  # fmt: skip

    return attend


def _multi_head_attention(w: _Writer, s: DecoderSizes) -> Attention:
    mask = w.add("Cast", "attention_mask", to=TensorProto.INT32)

    def attend(x: str, layer: int) -> str:
        past, present = _ends(layer)
        inputs = [*_projections(w, s, x, layer, False), "", mask, "", *past]
        return w.several("MultiHeadAttention", inputs, [f"attended_{layer}", *present], domain=CONTRIB,
                         num_heads=s.heads)[0]  # fmt: skip

    return attend


def _grouped_attention(w: _Writer, s: DecoderSizes) -> Attention:
    lengths = w.add("ReduceSum", "attention_mask", w.constant([1]), keepdims=0)
    lengths = w.add("Cast", w.add("Sub", lengths, w.constant(1)), to=TensorProto.INT32)
    total = w.add("Gather", w.add("Shape", "attention_mask"), w.constant(1), axis=0)
    total = w.add("Cast", total, to=TensorProto.INT32)
    angles = np.outer(np.arange(s.positions), 1e4 ** (-np.arange(s.head_width // 2) / (s.head_width // 2)))
    cosine, sine = (w.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))

    def attend(x: str, layer: int) -> str:
        past, present = _ends(layer)
        inputs = [*_projections(w, s, x, layer, False), *past, lengths, total, cosine, sine]
        return w.several("GroupQueryAttention", inputs, [f"attended_{layer}", *present], domain=CONTRIB, do_rotary=1,
                         num_heads=s.heads, kv_num_heads=s.cache_heads)[0]  # fmt: skip

    return attend


def _model(w: _Writer, s: DecoderSizes, form: str) -> onnx.ModelProto:
    integer, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", integer, [BATCH, NEW]),
        helper.make_tensor_value_info("attention_mask", integer, [BATCH, TOTAL]),
    ]
    if form != "grouped":
        inputs.append(helper.make_tensor_value_info("position_ids", integer, [BATCH, NEW]))
    outputs = [helper.make_tensor_value_info("logits", real, [BATCH, NEW, s.vocabulary])]
    for layer in range(s.layers):
        for kind in ("key", "value"):
            shape = [BATCH, s.cache_heads, PAST, s.head_width]
            inputs.append(helper.make_tensor_value_info(f"past_key_values.{layer}.{kind}", real, shape))
            joined = [*shape[:2], TOTAL, shape[3]]
            outputs.append(helper.make_tensor_value_info(f"present.{layer}.{kind}", real, joined))
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    opsets = [helper.make_opsetid("", 23 if form == "attention" else 18), helper.make_opsetid(CONTRIB, 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=11 if form == "attention" else 9)
    onnx.checker.check_model(made)
    return made
