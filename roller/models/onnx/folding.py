"""A graph made simpler before it is compiled: what computes nothing is gone, what is constant is merged."""

from __future__ import annotations

from roller.core.gc_pause import gc_paused
from roller.models.graph.nodes import Graph
from roller.models.onnx.affine import fold_affine
from roller.models.onnx.draft import Draft
from roller.models.onnx.duplicates import merge_constants, merge_nodes, remove_dead
from roller.models.onnx.padding import fold_padding
from roller.models.onnx.quantised.rewrite import to_integers
from roller.models.onnx.simplify import simplify

#: Sweeps over a graph; each takes time linear in its nodes, and two or three find everything in real models.
MAX_ROUNDS = 8

#: Operators of which two uses with equal inputs differ.
RANDOM = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


@gc_paused()
def fold(graph: Graph) -> Graph:
    """Return a graph that computes the same with fewer nodes.

    Gone are nodes that change nothing and nodes nothing reads; movements in a row become one; scales and shifts per
    channel (batch normalisation above all) go into the weights before them, in float64 and rounded once; zero padding
    goes into the convolution after it; equal constants and equal nodes are there once; what a quantised model computes
    between dequantising and quantising is computed with its integers where that is exact. Inputs and outputs keep
    their names, types and order.
    """
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
