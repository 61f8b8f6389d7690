"""Folds zero padding into the pads of the next convolution or average pooling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph


def fold_padding(draft: MutableGraph) -> bool:
    """Fold Pad nodes into their readers in place; return whether any was folded."""
    producers = draft.producers()
    changed = False
    for index, node in enumerate(draft.nodes):
        if node.domain or node.op not in ("Conv", "AveragePool"):
            continue
        pad = producers.get(node.inputs[0])
        amounts = _zero_pad_amounts(draft, pad) if pad is not None and pad.op == "Pad" and not pad.domain else None
        if pad is None or amounts is None:
            continue
        rank = len(draft.shape(node.inputs[0]))
        own = _explicit_pads_of_node(node, rank - 2)
        if own is None or any(amounts[d] for d in (0, 1, rank, rank + 1)) or min(amounts) < 0:
            continue
        spatial = [*amounts[2:rank], *amounts[rank + 2 :]]
        attributes = {**node.attributes, "pads": tuple(p + o for p, o in zip(spatial, own, strict=True))}
        attributes.pop("auto_pad", None)
        if node.op == "AveragePool":
            # The Pad's zeros count in the average; the pooling's own padding counts only with ``count_include_pad``.
            if node.attributes.get("ceil_mode", 0) or (any(own) and not node.attributes.get("count_include_pad", 0)):
                continue
            attributes["count_include_pad"] = 1
            if any(p >= k for p, k in zip(attributes["pads"], (*node.attributes["kernel_shape"],) * 2, strict=True)):
                continue  # runtimes refuse windows entirely within the padding
        draft.nodes[index] = replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), attributes=attributes)
        changed = True
    return changed


def _explicit_pads_of_node(node: Node, spatial: int) -> tuple[int, ...] | None:
    """Return the pads of a node; ``None`` if they depend on its input's size."""
    if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        return None
    return tuple(node.attributes.get("pads", (0,) * (2 * spatial)))


def _zero_pad_amounts(draft: MutableGraph, pad: Node) -> list[int] | None:
    """Return the padding amounts of a Pad with zeros, all starts before all ends; ``None`` for other Pads."""
    if pad.attributes.get("mode", "constant") != "constant":
        return None
    rank = len(draft.shape(pad.inputs[0]))
    if pad.version < 11:
        amounts, filler = np.array(pad.attributes.get("pads", ())), np.array(pad.attributes.get("value", 0.0))
    else:
        known, given = draft.constant_input(pad, 1), draft.constant_input(pad, 2)
        if known is None or (draft.has_input(pad, 2) and given is None):
            return None
        amounts, filler = known, np.zeros(1) if given is None else given
    if np.any(filler != 0):
        return None
    axes = draft.constant_input(pad, 3)
    if draft.has_input(pad, 3):
        if axes is None:
            return None
        full = np.zeros(2 * rank, np.int64)
        for at, axis in enumerate(axes.tolist()):
            full[axis % rank], full[axis % rank + rank] = amounts[at], amounts[at + len(axes)]
        amounts = full
    return [int(a) for a in amounts] if len(amounts) == 2 * rank else None
