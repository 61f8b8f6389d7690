"""Reuses the lowering of nodes that equal earlier nodes except for names, as in repeated layers.

Only element-wise nodes are reused; large models consist mostly of such nodes.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roller.expr import Load, Scalar, transform_scalar
from roller.models.graph.lowered_parts import ComputedPart, Part
from roller.models.graph.model_graph import Node
from roller.models.graph.model_independent_kernels import number_tensor_and_axis_names
from roller_runtime.plan.program_steps import Value


@dataclass
class RepeatedNodes:
    """One numbered part per kind of node, with the positions of its names among the node's names."""

    _known: dict[Hashable, tuple[ComputedPart, tuple[int, ...]]] = field(default_factory=dict)

    def kind(self, node: Node, values: Mapping[str, Value], constants: Container[str]) -> Hashable | None:
        """Return the key of nodes that differ only in names; ``None`` for nodes with constants or several results."""
        if len(node.outputs) != 1 or not node.inputs:
            return None
        if any(not n or n in constants or n not in values for n in node.inputs) or node.outputs[0] not in values:
            return None
        if any(isinstance(v, np.ndarray) for v in node.attributes.values()):
            return None
        types = tuple((values[n].shape, values[n].dtype) for n in (*node.inputs, node.outputs[0]))
        details = tuple(sorted((k, repr(v)) for k, v in node.attributes.items()))
        same = tuple(map(node.inputs.index, node.inputs)) if len(node.inputs) > 1 else (0,)
        return node.domain, node.op, node.version, details, types, same

    def part(self, kind: Hashable, node: Node, origin: str) -> ComputedPart | None:
        """Return the part of a node whose kind is known; otherwise ``None``."""
        found = self._known.get(kind)
        if found is None:
            return None
        form, places = found
        own = (*node.inputs, node.outputs[0])
        return instantiate_part(form, tuple(own[p] for p in places), (origin,))

    def remember_lowering(self, kind: Hashable, node: Node, parts: list[Part]) -> None:
        """Remember the part of a node if it is one stage over the node's own names."""
        if len(parts) != 1 or not isinstance(parts[0], ComputedPart) or len(parts[0].stages) != 1:
            return
        form, names = number_tensor_and_axis_names(parts[0])
        own = (*node.inputs, node.outputs[0])
        if set(names) <= set(own):
            self._known[kind] = form, tuple(own.index(n) for n in names)


def instantiate_part(form: ComputedPart, names: tuple[str, ...], nodes: tuple[str, ...]) -> ComputedPart:
    """Return a numbered part of one stage with new names; cache its numbered form."""
    (stage,) = form.stages
    count = len(form.reads)
    new = {f"#{k}": name for k, name in enumerate(names)}

    def leaf(n: Scalar) -> Scalar:
        return Load(new[n.tensor], n.index, n.guard, n.outside) if isinstance(n, Load) else n

    body = transform_scalar(stage.body, leaf)
    reads = tuple(replace(t, name=name) for t, name in zip(form.reads, names, strict=False))
    written = replace(stage, output=replace(stage.output, name=names[count]), body=body)
    out = ComputedPart(reads, (written,), (names[count],), nodes)
    out.__dict__["numbered"] = form, names
    return out
