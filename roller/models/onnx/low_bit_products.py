"""Products with constant weights of 4 bits that DequantizeLinear expands: the weights stay packed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from roller.models.graph.model_graph import Graph, Node
from roller.models.onnx.low_bit_weights import LowBitWeights, is_packable, pack_low_bit_rows
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.onnx_types import onnx_dtype
from roller_runtime.plan.program_steps import Value

#: Number that is added to signed 4-bit numbers.
_OFFSETS = {"int4": 8, "uint4": 0}


def expands_4bit_matrix(node: Node, constants: Mapping[str, np.ndarray]) -> bool:
    """Return whether a node expands a constant matrix of 4-bit numbers in blocks, by constant scales."""
    if node.op != "DequantizeLinear" or node.domain or not node.attributes.get("block_size"):
        return False
    return all(n in constants for n in node.inputs if n) and is_4bit_matrix(constants[node.inputs[0]])


def is_4bit_matrix(stored: np.ndarray) -> bool:
    """Return whether an array is a matrix of 4-bit numbers."""
    return stored.ndim == 2 and stored.dtype.name in _OFFSETS


def with_low_bit_products(graph: Graph, most_rows: int) -> Graph:
    """Return the graph with packed weights in products of at most ``most_rows`` rows, and with others expanded."""
    if not any(expands_4bit_matrix(n, graph.constants) for n in graph.nodes):
        return graph
    draft = MutableGraph.of(graph)
    for node in graph.nodes:
        if expands_4bit_matrix(node, graph.constants):
            _replace_dequantisation(draft, node, most_rows)
    return draft.to_graph()


def _constant(draft: MutableGraph, node: Node, position: int) -> np.ndarray | None:
    return draft.constants.get(node.inputs[position]) if position < len(node.inputs) else None


@dataclass(frozen=True)
class _Uses:
    """The nodes that read a matrix, and the transposes between."""

    products: tuple[Node, ...]
    transposes: tuple[Node, ...]


def _replace_dequantisation(draft: MutableGraph, node: Node, most_rows: int) -> None:
    uses = _uses_as_right_operand(draft, node.outputs[0])
    weights = None if uses is None else _packed_weights(draft, node, bool(uses.transposes))
    few = uses is not None and all(math.prod(draft.shape(p.inputs[0])[:-1]) <= most_rows for p in uses.products)
    if uses is None or weights is None or not few:
        draft.constants[node.outputs[0]] = _expanded(draft, node)
        draft.nodes.remove(node)
        return
    arrays = (weights.packed, weights.scales, weights.zeros)
    names = tuple(draft.constant(f"{node.outputs[0]}/{n}", a) for n, a in
                  zip(("packed", "scales", "zeros"), arrays, strict=True) if a is not None)  # fmt: skip
    gone = {id(n) for n in (node, *uses.transposes)}
    products = {id(n) for n in uses.products}
    draft.nodes = [
        replace(n, op="MatMulLowBits", domain="roller", version=1, inputs=(n.inputs[0], *names), attributes={})
        if id(n) in products
        else n
        for n in draft.nodes
        if id(n) not in gone
    ]


def _uses_as_right_operand(draft: MutableGraph, name: str) -> _Uses | None:
    """Return the products whose right operand is a matrix or its transpose; ``None`` if it has other readers."""
    products, transposes = _readers(draft, name), list[Node]()
    if all(n.op == "Transpose" and not n.domain for n in products):
        transposes = products
        products = [p for t in transposes for p in _readers(draft, t.outputs[0])]
    ends = {name, *(t.outputs[0] for t in transposes)}
    right = all(n.op == "MatMul" and not n.domain and n.inputs[1] in ends and n.inputs[0] not in ends for n in products)
    ranks = all(len(draft.shape(n.inputs[0])) >= 1 for n in products)
    return _Uses(tuple(products), tuple(transposes)) if products and right and ranks and not (
        ends & set(draft.outputs)
    ) else None  # fmt: skip


def _readers(draft: MutableGraph, name: str) -> list[Node]:
    return [n for n in draft.nodes if name in n.inputs]


def _packed_weights(draft: MutableGraph, node: Node, transposed: bool) -> LowBitWeights | None:
    """Return packed weights whose rows are summed; ``None`` if the blocks lie along columns or do not fit."""
    stored, scale, zero = (_constant(draft, node, n) for n in range(3))
    block, axis = int(node.attributes["block_size"]), int(node.attributes.get("axis", 1)) % 2
    absent = len(node.inputs) < 3 or not node.inputs[2]
    if stored is None or scale is None or (zero is None and not absent) or axis != int(transposed):
        return None
    offset = _OFFSETS[stored.dtype.name]
    numbers, scales = (stored.T, scale.T) if transposed else (stored, scale)
    if not is_packable(len(numbers), block):
        return None
    shift = np.zeros(scales.shape, np.int8) if zero is None else (zero.T if transposed else zero).astype(np.int8)
    zeros = (shift + offset).astype(np.uint8)
    numbers = (numbers.astype(np.int8) + offset).astype(np.uint8)
    default = bool((zeros == _OFFSETS["int4"]).all())
    return LowBitWeights(
        pack_low_bit_rows(numbers, block),
        np.ascontiguousarray(scales),
        None if default else np.ascontiguousarray(zeros),
    )


def _expanded(draft: MutableGraph, node: Node) -> np.ndarray:
    stored, scale, zero = (_constant(draft, node, n) for n in range(3))
    assert stored is not None
    value: Value = draft.values[node.outputs[0]]
    axis, block = int(node.attributes.get("axis", 1)) % 2, int(node.attributes["block_size"])

    def whole(array: np.ndarray) -> np.ndarray:
        return np.repeat(array, block, axis)[tuple(map(slice, stored.shape))]

    numbers = stored.astype(np.float32)
    if zero is not None:
        numbers -= whole(zero.astype(np.float32))
    assert scale is not None
    return np.asarray((numbers * whole(scale.astype(np.float32))).astype(onnx_dtype(value.dtype)))
