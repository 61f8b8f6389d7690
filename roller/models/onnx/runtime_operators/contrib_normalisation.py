"""Rewrites the layer normalizations of a value, of a sum and of a sum of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.runtime_operators.rewrites import NodeRewrite, register_rewrite


@register_rewrite("LayerNormalization", domain="")
def rewrite_layer_normalisation(s: NodeRewrite) -> Sequence[str]:
    """Rewrite to the operator of the same name in set 17; optimized models of older sets contain it."""
    return s.add_with_results(
        "LayerNormalization", s.node.inputs, max(len(s.node.outputs), 3), **_present_attributes(s, "axis", "epsilon")
    )


@register_rewrite("SimplifiedLayerNormalization", domain="")
def rewrite_simplified_layer_normalisation(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the normalization by the root mean square."""
    return [
        _normalise_by_mean_square(
            s, s.required(0), s.required(1), s.attribute("epsilon", 1e-5), s.attribute("axis", -1)
        )
    ]


def _present_attributes(s: NodeRewrite, *names: str) -> dict[str, Any]:
    return {n: s.attribute(n) for n in names if s.attribute(n) is not None}


def _normalise_by_mean_square(s: NodeRewrite, x: str, scale: str, epsilon: float, axis: int = -1) -> str:
    axes = s.constant(np.arange(axis % len(s.shape(x)), len(s.shape(x)), dtype=np.int64))
    mean = s.add("ReduceMean", s.add("Mul", x, x), axes, keepdims=1)
    return s.add("Mul", s.add("Div", x, s.add("Sqrt", s.add("Add", mean, s.number(epsilon, x)))), scale)


def _sum_with_skip(s: NodeRewrite, bias: int) -> str:
    """Return the sum of the input, the skip connection and an optional bias."""
    total = s.add("Add", s.required(0), s.required(1))
    return s.add("Add", total, s.input(bias)) if s.input(bias) else total


@register_rewrite("SkipLayerNormalization")
def rewrite_skip_layer_normalisation(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a sum and its layer normalization; the sum is the fourth result."""
    total = _sum_with_skip(s, 4)
    inputs = [total, s.required(2), *([s.input(3)] if s.input(3) else [])]
    y = s.add_with_results("LayerNormalization", inputs, 1, epsilon=float(s.attribute("epsilon", 1e-12)))
    return [y[0], "", "", total]


@register_rewrite("SkipSimplifiedLayerNormalization")
def rewrite_skip_simplified_layer_normalisation(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a sum and its normalization by the root mean square; the sum is the fourth result."""
    total = _sum_with_skip(s, 3)
    return [_normalise_by_mean_square(s, total, s.required(2), s.attribute("epsilon", 1e-12)), "", "", total]


@register_rewrite("EmbedLayerNormalization")
def rewrite_embed_layer_normalisation(s: NodeRewrite) -> Sequence[str]:
    """Rewrite the layer normalization of the sum of word, position and segment embeddings."""
    ids, segments, words, places, kinds, gamma, beta = (s.input(n) for n in range(7))
    if len(s.shape(ids)) != 2:
        raise Unsupported(f"its ids have shape {list(s.shape(ids))}")
    length = s.shape(ids)[1]
    at = s.input(8) or s.constant(np.arange(length, dtype=np.int64)[None])
    total = s.add("Add", s.add("Gather", words, ids, axis=0), s.add("Gather", places, at, axis=0))
    if segments and kinds:
        total = s.add("Add", total, s.add("Gather", kinds, segments, axis=0))
    (y,) = s.add_with_results(
        "LayerNormalization", [total, gamma, beta], 1, epsilon=float(s.attribute("epsilon", 1e-12))
    )
    mask = ""
    if s.input(7):
        counted = s.add("ReduceSum", s.cast(s.input(7), "int32"), s.constant(np.array([1])), keepdims=0)
        mask = s.cast(counted, "int32")
    elif len(s.node.outputs) > 1:
        mask = s.constant(np.zeros(s.shape(ids)[0], np.int32))
    return [y, mask, total]
