"""Graph simplification before compilation: removes no-ops, folds constants, merges duplicates."""

from __future__ import annotations

from roller.core.gc_pause import gc_paused
from roller.models.graph.nodes import Graph
from roller.models.onnx.affine import fold_affine
from roller.models.onnx.draft import Draft
from roller.models.onnx.duplicates import merge_constants, merge_nodes, remove_dead
from roller.models.onnx.padding import fold_padding
from roller.models.onnx.quantised.rewrite import to_integers
from roller.models.onnx.simplify import simplify

#: Maximum number of sweeps over a graph; each is linear in its nodes, and two or three suffice for real models.
MAX_ROUNDS = 8

#: Operators whose results differ between two uses with equal inputs.
RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


@gc_paused()
def fold(graph: Graph) -> Graph:
    """Return an equivalent graph with fewer nodes; inputs and outputs keep their names, types and order."""
    # No-ops and dead nodes are removed. Consecutive movements merge; scales and shifts per channel (batch
    # normalization) are folded into preceding weights in float64 and rounded once; zero padding is folded into the next
    # convolution; equal constants and nodes merge; quantized models compute with integers where that is exact.
    draft = Draft.of(graph)
    remove_dead(draft)
    for _ in range(MAX_ROUNDS):
        changed = simplify(draft)
        changed |= fold_affine(draft)
        changed |= fold_padding(draft)
        remove_dead(draft)
        merge_constants(draft)
        changed |= merge_nodes(draft, RANDOM)
        if not changed:
            break
    if to_integers(draft):
        simplify(draft)
        remove_dead(draft)
    return draft.close()
