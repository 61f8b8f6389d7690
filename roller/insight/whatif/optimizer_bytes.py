"""Bytes per parameter that optimizers read and write."""

from __future__ import annotations

from collections.abc import Mapping

from roller.insight.step.graph import StepGraph
from roller.insight.whatif.task_selection import parameter_bytes

#: Numbers of tensors, each of a parameter's size, that a fused update reads and writes: the parameter, its gradient
#: (read only), and the state, which is m and v for Adam and one buffer for momentum.
KINDS: Mapping[str, tuple[int, int]] = {"adam": (4, 3), "adamw": (4, 3), "momentum": (3, 2), "sgd": (2, 1)}
#: Numbers of kernels of an unfused update per parameter or group of parameters, and of tensors that they read or write.
UNFUSED: Mapping[str, tuple[int, int]] = {"adam": (9, 18), "adamw": (10, 20), "momentum": (3, 8), "sgd": (1, 3)}


def fused_update_bytes(graph: StepGraph, optimizer: str) -> tuple[float, float]:
    """Return the number of bytes that a fused update reads per step, and the number that it writes."""
    size = parameter_bytes(graph)
    read, written = KINDS[optimizer]
    return read * size, written * size


#: Maps a PyTorch class to the possible optimizers; the name of SGD does not show whether it has momentum.
_CLASSES: Mapping[str, tuple[str, ...]] = {"sgd": ("sgd", "momentum"), "adam": ("adam",), "adamw": ("adamw", "adam")}


def possible_optimizers(graph: StepGraph) -> tuple[str, ...]:
    """Return the possible optimizers of a profile, most likely first; none unless the profile names exactly one class.

    Examples
    --------
    >>> from roller.insight.step.graph import StepGraph
    >>> graphs = [StepGraph([], [], {}, 0.0, 0.0, optimizers=names) for names in (("FusedAdam",), ())]
    >>> [possible_optimizers(graph) for graph in graphs]
    [('adam',), ()]
    """
    if len(graph.optimizers) != 1:
        return ()
    return _CLASSES.get(graph.optimizers[0].lower().removeprefix("fused"), ())
