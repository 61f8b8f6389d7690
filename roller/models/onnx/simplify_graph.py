"""Simplifies a graph before compilation: removes no-ops, folds scales, shifts and padding, and merges duplicates."""

from __future__ import annotations

from roller.models.graph.model_graph import Graph
from roller.models.onnx.fold_affine import fold_affine
from roller.models.onnx.fold_padding import fold_padding
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.quantised.rewrite_to_integers import rewrite_to_integers
from roller.models.onnx.remove_duplicates import merge_equal_constants, merge_equal_nodes, remove_dead_nodes
from roller.models.onnx.remove_no_ops import remove_no_ops
from roller_runtime.core.gc_pause import gc_paused

#: Maximum number of sweeps over a graph; each takes time linear in the number of nodes, and real models need two or
#: three.
MAX_ROUNDS = 8

#: Operators whose results differ between two nodes with equal inputs.
RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


@gc_paused()
def fold_graph(graph: Graph) -> Graph:
    """Return an equivalent graph with fewer nodes; inputs and outputs keep their names, types and order."""
    # No-ops and dead nodes are removed, and consecutive data movements are merged. Per-channel scales and shifts (batch
    # normalization) are folded into the preceding weights in float64 and rounded once. Zero padding is folded into the
    # next convolution or average pooling. Equal constants and equal nodes are merged. Quantized models compute with
    # integers where that is exact.
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
