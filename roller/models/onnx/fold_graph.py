"""Graph simplification before compilation: removes no-ops, folds constants, merges duplicates."""

from __future__ import annotations

from roller.core.gc_pause import gc_paused
from roller.models.graph.nodes import Graph
from roller.models.onnx.fold_affine import fold_affine
from roller.models.onnx.fold_padding import fold_padding
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.quantised.integer_arithmetic import rewrite_to_integers
from roller.models.onnx.remove_duplicates import merge_equal_constants, merge_equal_nodes, remove_dead_nodes
from roller.models.onnx.remove_no_ops import remove_no_ops

#: Maximum number of sweeps over a graph; each is linear in its nodes, and two or three suffice for real models.
MAX_ROUNDS = 8

#: Operators whose results differ between two uses with equal inputs.
RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


@gc_paused()
def fold_graph(graph: Graph) -> Graph:
    """Return an equivalent graph with fewer nodes; inputs and outputs keep their names, types and order."""
    # No-ops and dead nodes are removed. Consecutive movements merge; scales and shifts per channel (batch
    # normalization) are folded into preceding weights in float64 and rounded once; zero padding is folded into the next
    # convolution; equal constants and nodes merge; quantized models compute with integers where that is exact.
    draft = MutableGraph.of(graph)
    remove_dead_nodes(draft)
    for _ in range(MAX_ROUNDS):
        changed = remove_no_ops(draft)
        changed |= fold_affine(draft)
        changed |= fold_padding(draft)
        remove_dead_nodes(draft)
        merge_equal_constants(draft)
        changed |= merge_equal_nodes(draft, RANDOM)
        if not changed:
            break
    if rewrite_to_integers(draft):
        remove_no_ops(draft)
        remove_dead_nodes(draft)
    return draft.to_graph()
