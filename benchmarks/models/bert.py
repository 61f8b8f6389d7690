"""BERT encoders (Devlin et al. 2019) as PyTorch exports them: MatMul, Add, Reshape, Transpose, Softmax, Erf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto

from benchmarks.models.network import Network


@dataclass(frozen=True)
class Bert:
    """Sizes of an encoder; ``fused_norms`` writes LayerNormalization, else ReduceMean, Sub, Pow, Sqrt and Div.

    A ``free`` one leaves batch and sequence to its calls, as symbols; it has places for ``sequence`` tokens at most.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    sequence: int = 128
    vocabulary: int = 30522
    fused_norms: bool = True
    external: bool = False
    free: bool = False


BASE = Bert()
LARGE = Bert(layers=24, width=1024, heads=16, inner=4096, external=True)
_EPSILON = 1e-12


def build(path: Path, batch: int, size: Bert = BASE) -> None:
    """Write an encoder: token ids, segments and mask in, last hidden state and pooled first token out."""
    with Network(path, size.external) as net:
        shape: tuple[int | str, int | str] = ("batch", "sequence") if size.free else (batch, size.sequence)
        ids = net.input("input_ids", shape, "int64", below=size.vocabulary)
        segments = net.input("token_type_ids", shape, "int64", below=2)
        mask = net.input("attention_mask", shape, "int64", below=2)
        x = _embeddings(net, size, ids, segments)
        seen = net.add("Unsqueeze", net.add("Cast", mask, to=TensorProto.FLOAT), net.integers(1, 2))
        blocked = net.add("Mul", net.add("Sub", net.number(1.0), seen), net.number(-10000.0))
        for n in range(size.layers):
            x = _layer(net, size, f"encoder.{n}", x, blocked)
        first = net.add("Gather", x, net.constant("first", np.array(0, np.int64)), axis=1)
        weight = net.normal("pooler.weight", (size.width, size.width), 1 / math.sqrt(size.width))
        pooled = net.add("Gemm", first, weight, net.normal("pooler.bias", (size.width,), 0.02), transB=1)
        net.output(x, "last_hidden_state", (*shape, size.width))
        net.output(net.add("Tanh", pooled), "pooler_output", (shape[0], size.width))


def _embeddings(net: Network, size: Bert, ids: str, segments: str) -> str:
    words = net.normal("embeddings.word", (size.vocabulary, size.width), 1.0)
    kinds = net.normal("embeddings.segment", (2, size.width), 0.5)
    places = net.normal("embeddings.position", (1, size.sequence, size.width), 0.5)
    if size.free:
        length = net.add("Slice", net.add("Shape", ids), net.integers(1), net.integers(2))
        places = net.add("Slice", places, net.integers(0), length, net.integers(1))
    total = net.add("Add", net.add("Gather", words, ids), net.add("Gather", kinds, segments))
    return _norm(net, size, "embeddings.norm", net.add("Add", total, places))


def _layer(net: Network, size: Bert, name: str, x: str, blocked: str) -> str:
    attended = _attention(net, size, f"{name}.attention", x, blocked)
    x = _norm(net, size, f"{name}.attention.norm", net.add("Add", attended, x))
    inner = _gelu(net, net.linear(f"{name}.inner", x, size.width, size.inner))
    outer = net.linear(f"{name}.outer", inner, size.inner, size.width)
    return _norm(net, size, f"{name}.norm", net.add("Add", outer, x))


def _attention(net: Network, size: Bert, name: str, x: str, blocked: str) -> str:
    head = size.width // size.heads

    def heads(kind: str, perm: list[int]) -> str:
        flat = net.linear(f"{name}.{kind}", x, size.width, size.width)
        split = net.add("Reshape", flat, net.integers(0, 0, size.heads, head))
        return str(net.add("Transpose", split, perm=perm))

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = net.add("Div", net.add("MatMul", query, key), net.number(math.sqrt(head)))
    shares = net.add("Softmax", net.add("Add", scores, blocked), axis=-1)
    mixed = net.add("Transpose", net.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    flat = net.add("Reshape", mixed, net.integers(0, 0, size.width))
    return net.linear(f"{name}.output", flat, size.width, size.width)


def _gelu(net: Network, x: str) -> str:
    erf = net.add("Erf", net.add("Div", x, net.number(math.sqrt(2))))
    return str(net.add("Mul", net.add("Mul", x, net.add("Add", erf, net.number(1.0))), net.number(0.5)))


def _norm(net: Network, size: Bert, name: str, x: str) -> str:
    weight = net.normal(f"{name}.weight", (size.width,), 0.1, mean=1.0)
    bias = net.normal(f"{name}.bias", (size.width,), 0.1)
    if size.fused_norms:
        return str(net.add("LayerNormalization", x, weight, bias, axis=-1, epsilon=_EPSILON))
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    spread = net.add("ReduceMean", net.add("Pow", centred, net.number(2.0)), axes=[-1])
    deviation = net.add("Sqrt", net.add("Add", spread, net.number(_EPSILON)))
    return str(net.add("Add", net.add("Mul", net.add("Div", centred, deviation), weight), bias))
