"""Rewrites integer products with a dynamically quantized first operand to sums that kernels convert to float32.

A ``MatMulInteger`` or ``ConvInteger`` with constant weights and a result that is cast to float32 becomes Roller's own
float32 operator if its sums fit into 32 bits. Padding with a zero point that is computed at run time moves before the
quantization, where the padding is 0. The scales of the tensor and of its columns are applied one after the other, so
that no kernel computes their product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.integer_products import sums_fit_int32, weights_minus_zero_points
from roller.models.onnx.mutable_graph import MutableGraph

_VERSION = 21
#: ``TensorProto.FLOAT`` of the ONNX specification, as a number because rewriting must not require the onnx package.
_FLOAT32 = 1
#: Dimension of the columns in the weights of each operator.
SUMS: Mapping[str, int] = {"MatMulInteger": 1, "ConvInteger": 0}


def rewrite_to_float_sums(draft: MutableGraph) -> bool:
    """Rewrite a graph in place; return whether it changed."""
    if not any(n.op in SUMS and not n.domain for n in draft.nodes):
        return False
    work = _FloatSumRewriter(draft)
    for node in draft.nodes:
        if not (work.gone & {*node.outputs}):
            work.take(node)
    changed = work.changed
    draft.nodes = work.nodes
    return changed


@dataclass
class _FloatSumRewriter:
    """The nodes rewritten so far, and the outputs of the casts that they replace."""

    draft: MutableGraph
    nodes: list[Node] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    changed: bool = False

    def __post_init__(self) -> None:
        self.writers, self.readers = self.draft.producers(), dict[str, list[Node]]()
        for node in self.draft.nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def take(self, node: Node) -> None:
        """Append a node, or the nodes that replace it."""
        if node.domain or node.op not in SUMS:
            self.nodes.append(self._split_product_of_factors(node) or node)
            return
        cast = self._only_reading_node(node.outputs[0])
        found = (
            self._split_into_integer_sum(node) if cast is not None and cast.op == "Cast" and not cast.domain else None
        )
        if found is None or cast is None or cast.attributes.get("to") != _FLOAT32:
            self.nodes.append(node)
            return
        before, plain = found
        self.nodes += [*before, replace(plain, outputs=cast.outputs, domain="roller")]
        self.gone.update(cast.outputs)
        self.changed = True

    def _only_reading_node(self, name: str) -> Node | None:
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.draft.outputs else None

    def _split_into_integer_sum(self, node: Node) -> tuple[list[Node], Node] | None:
        """Return the nodes before a sum of plain products, and the node of the sum; ``None`` for other nodes."""
        held, minus, axis = self.draft.constant_input(node, 1), self.draft.constant_input(node, 3), SUMS[node.op]
        if held is None or (minus is None and self.draft.has_input(node, 3)) or (axis == 1 and held.ndim != 2):
            return None
        weights = weights_minus_zero_points(held, minus, axis)
        if weights is None or not sums_fit_int32(weights, None, axis):
            return None
        zero = node.inputs[2] if self.draft.has_input(node, 2) else ""
        if zero and self.draft.values[zero].elements != 1:
            return None
        if axis == 1 or not zero or zero in self.draft.constants:
            return [], node
        return self._pad_before_quantising(node, zero)

    def _pad_before_quantising(self, node: Node, zero: str) -> tuple[list[Node], Node] | None:
        """Return nodes that pad the image before quantization, and the unpadded convolution; otherwise ``None``."""
        draft, details = self.draft, node.attributes
        pads = tuple(details.get("pads", ()) or ())
        if (details.get("auto_pad") or "NOTSET") not in ("NOTSET", "VALID"):
            return None
        if not any(pads) or details.get("auto_pad") == "VALID":
            return [], node
        source, image = self.writers.get(node.inputs[0]), draft.values[node.inputs[0]]
        if source is None or source.domain or source.op != "QuantizeLinear" or source.inputs[2:3] != (zero,):
            return None
        rank = len(pads) // 2
        around = (0, 0, *pads[:rank], 0, 0, *pads[rank:])
        shape = (
            *image.shape[:2],
            *(n + a + b for n, a, b in zip(image.shape[2:], pads[:rank], pads[rank:], strict=True)),
        )
        real = draft.value(f"{node.outputs[0]}/padded", replace(draft.values[source.inputs[0]], shape=shape))
        stored = draft.value(f"{node.outputs[0]}/image", replace(image, shape=shape))
        amounts = draft.constant(f"{node.outputs[0]}/pads", np.array(around, np.int64))
        before = [
            Node("Pad", (source.inputs[0], amounts), (real,), {}, f"{real}/pad", "", _VERSION),
            replace(source, inputs=(real, *source.inputs[1:]), outputs=(stored,), name=f"{stored}/quantizelinear"),
        ]
        attributes = {**details, "pads": (0,) * len(pads)}
        return before, replace(node, inputs=(stored, *node.inputs[1:]), attributes=attributes)

    def _split_product_of_factors(self, node: Node) -> Node | None:
        """Split ``sum * (a * b)`` into two products: append one and return the other; ``None`` for other nodes."""
        if node.domain or node.op != "Mul":
            return None
        for k in (0, 1):
            total, factors = node.inputs[k], self.writers.get(node.inputs[1 - k])
            if total not in self.gone or factors is None or factors.op != "Mul" or factors.domain:
                continue
            for j in (0, 1):
                held, one = self.draft.constants.get(factors.inputs[j]), factors.inputs[1 - j]
                if held is None or one in self.draft.constants or self.draft.values[one].elements != 1:
                    continue
                between = self.draft.value(f"{node.outputs[0]}/columns", self.draft.values[node.outputs[0]])
                inputs = (total, factors.inputs[j])
                self.nodes.append(Node("Mul", inputs, (between,), {}, f"{between}/mul", "", _VERSION))
                return replace(node, inputs=(between, one))
        return None
