"""Records the nodes that a tracer folds, with their small results, so that they can be evaluated at other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import onnx

#: Maximum number of elements of a recorded result, such as a shape or a length, and of a recorded constant.
MAX_RESULT, MAX_CONSTANT = 16, 4096


@dataclass(frozen=True)
class FoldedNode:
    """A folded node: its inputs and outputs by their unique names, with ``None`` in place of large arrays."""

    proto: onnx.NodeProto
    attributes: Mapping[str, object]
    opsets: Mapping[str, int]
    inputs: tuple[tuple[str, np.ndarray | None], ...]
    outputs: tuple[tuple[str, np.ndarray | None], ...]
    reads_dimensions: bool  #: Of its input, not its elements


_RECORD: ContextVar[dict[str, FoldedNode] | None] = ContextVar("folded nodes", default=None)


@contextmanager
def record_folded_nodes() -> Iterator[dict[str, FoldedNode]]:
    """Record the nodes folded within the context, in their order, by the name of their first output."""
    found: dict[str, FoldedNode] = {}
    token = _RECORD.set(found)
    try:
        yield found
    finally:
        _RECORD.reset(token)


def record_folded_node(
    proto: onnx.NodeProto, attributes: Mapping[str, object], opsets: Mapping[str, int],
    inputs: Sequence[tuple[str, np.ndarray | None]], outputs: Sequence[tuple[str, np.ndarray]],
    reads_dimensions: bool,
) -> None:  # fmt: skip
    """Add a node to the record, if there is one."""
    found = _RECORD.get()
    if found is not None:
        held = tuple((n, a if a is not None and a.size <= MAX_CONSTANT else None) for n, a in inputs)
        made = tuple((n, a if a.size <= MAX_RESULT else None) for n, a in outputs)
        found[next((n for n, _ in made if n), "")] = FoldedNode(proto, attributes, opsets, held, made, reads_dimensions)
