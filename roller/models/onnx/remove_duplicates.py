"""Merges equal constants and equal nodes, and removes dead nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph

#: Maximum size, in bytes, of an array that is hashed entirely. Of a larger array, a sample is hashed, and arrays with
#: equal samples are compared.
_WHOLE_BYTES = 1 << 16
#: Number of positions in a sample, and of consecutive elements at each position.
_PLACES, _NEIGHBOURS = 16, 32
#: Maximum number of large arrays with equal samples that are compared; unless crafted, different weights have different
#: samples.
_MOST_ALIKE = 8


def remove_dead_nodes(draft: MutableGraph) -> bool:
    """Remove, in place, nodes whose outputs are not read; return whether there were any."""
    wanted = set(draft.outputs)
    kept: list[Node] = []
    for node in reversed(draft.nodes):
        if any(n in wanted for n in node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    dropped = len(kept) < len(draft.nodes)
    draft.nodes = kept[::-1]
    return dropped


def merge_equal_constants(draft: MutableGraph) -> None:
    """Merge equal constants in place; outputs keep their names."""
    used = dict.fromkeys(n for node in draft.nodes for n in node.inputs if n in draft.constants)
    seen: dict[Hashable, list[str]] = {}
    same: dict[str, str] = {}
    outputs = set(draft.outputs)
    for name in sorted(used, key=lambda n: n not in outputs):
        array = draft.constants[name]
        alike = seen.setdefault(_array_hash_key(array), [])
        small = array.nbytes <= _WHOLE_BYTES
        first = next((o for o in alike if small or _have_equal_bytes(array, draft.constants[o])), None)
        if first is not None:
            same[name] = first
        elif len(alike) < _MOST_ALIKE:
            alike.append(name)
    if same:
        draft.nodes = [replace(n, inputs=tuple(same.get(i, i) for i in n.inputs)) for n in draft.nodes]


def merge_equal_nodes(draft: MutableGraph, once_only: frozenset[str]) -> bool:
    """Merge nodes with equal operators (not in ``once_only``), attributes and inputs; return whether any merged."""
    seen: dict[Hashable, Node] = {}
    same: dict[str, str] = {}
    kept: list[Node] = []
    outputs = set(draft.outputs)
    for node in draft.nodes:
        if any(n in same for n in node.inputs):
            node = replace(node, inputs=tuple(same.get(n, n) for n in node.inputs))
        kept.append(node)
        if node.op in once_only:
            continue
        asked = tuple(bool(n) for n in node.outputs)
        attributes = tuple(sorted((k, _attribute_key(v)) for k, v in node.attributes.items()))
        first = seen.setdefault((node.domain, node.op, node.version, node.inputs, attributes, asked), node)
        if first is not node and not outputs.intersection(node.outputs):
            same.update(zip(node.outputs, first.outputs, strict=True))
            same.pop("", None)
            kept.pop()
    merged = len(kept) < len(draft.nodes)
    draft.nodes = kept
    return merged


def _array_hash_key(array: np.ndarray) -> Hashable:
    """Return a hash key that equal arrays share; small arrays that differ have different keys."""
    flat = array.reshape(-1) if array.nbytes <= _WHOLE_BYTES else _sample_elements(array)
    digest = hashlib.blake2b(np.ascontiguousarray(flat).view(np.uint8).tobytes(), digest_size=16).digest()
    return array.dtype.name, array.shape, digest


def _sample_elements(array: np.ndarray) -> np.ndarray:
    """Return elements at a few positions; for a memory map, this reads few pages."""
    places = np.linspace(0, array.size - 1, _PLACES).astype(np.int64)
    at = np.minimum(places[:, None] + np.arange(_NEIGHBOURS), array.size - 1).reshape(-1)
    return np.asarray(array[np.unravel_index(at, array.shape)])


def _have_equal_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two large arrays of equal dtype and shape have equal bytes."""
    if one is other:
        return True
    if not any(one.strides) and not any(other.strides):
        return True  # one repeated element, which the samples have compared
    bits = np.dtype(f"u{one.dtype.itemsize}")  # bitwise: NaN equals itself, and 0.0 differs from -0.0
    return bool(np.array_equal(one.view(bits), other.view(bits)))


def _attribute_key(value: Any) -> Hashable:
    """Return an attribute as a sortable key that distinguishes -0.0 from 0.0."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}{value.shape}{hashlib.blake2b(value.tobytes()).hexdigest()}"
    return repr(value)
