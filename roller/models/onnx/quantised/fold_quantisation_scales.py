"""Folds a quantization's scale into preceding constants: ``round(x / s)`` needs no division if ``x`` is linear.

Sums, maxima, rectifiers and means commute with the division. Constant scales of products and of dequantized values are
divided by ``s`` in float64 and rounded once, like the factors of integer runtimes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph
from roller.models.onnx.quantised.integer_forms import QuantisationParameters

#: Functions f of their first input, or of all inputs, with f(c x) = c f(x) for c > 0.
_OF_ONE = frozenset((
    "Abs", "AveragePool", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LeakyRelu", "MaxPool", "Neg",
    "PRelu", "ReduceL1", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
))  # fmt: skip
_OF_ALL = frozenset(("Add", "Concat", "Max", "Mean", "Min", "Sub", "Sum"))
#: Maximum number of operators through which a scale is propagated.
_DEEPEST = 16
_LEAST, _MOST = np.finfo(np.float32).tiny, np.finfo(np.float32).max


@dataclass
class ScaleFolding:
    """The quantizations whose scales are to be folded, and the constants before rounding to float32."""

    draft: MutableGraph
    asked: list[tuple[str, QuantisationParameters]] = field(default_factory=list)
    exact: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, base: str, array: np.ndarray) -> str:
        """Add a float64 constant rounded to float32; return its name."""
        name = self.draft.constant(base, array.astype(np.float32))
        self.exact[name] = array
        return name

    def register_quantisation(self, node: Node, parameters: QuantisationParameters) -> None:
        """Register a quantization whose scale is to be folded; scales along an axis are not."""
        if parameters.axis is None:
            self.asked.append((node.outputs[0], parameters))

    def fold(self) -> None:
        """Fold the scale of each registered quantization if its input is linear and has no other reader."""
        draft = self.draft
        self._users, self._writers = (
            draft.count_reads(),
            {n: k for k, node in enumerate(draft.nodes) for n in node.outputs},
        )
        for result, parameters in self.asked:
            at = self._writers[result]
            node, changes = draft.nodes[at], dict[int, Node]()
            factor = 1 / float(parameters.scale)
            if factor == 1 or not self._try_scale_value(node.inputs[0], factor, changes, 0):
                continue
            for place, changed in changes.items():
                draft.nodes[place] = changed
            one = draft.constant(f"{result}/scale", np.ones((), np.float32))
            draft.nodes[at] = replace(node, inputs=(node.inputs[0], one, *node.inputs[2:]))

    def _try_scale_value(self, name: str, factor: float, changes: dict[int, Node], depth: int) -> bool:
        """Collect changed nodes that compute ``factor`` times a value; return whether that is possible."""
        at = self._writers.get(name)
        if at is None or at in changes or self._users[name] != 1 or depth > _DEEPEST:
            return False
        node = self.draft.nodes[at]
        if node.domain:
            return False  # an integer sum has no scale
        if node.op == "DequantizeLinear":
            return self._try_scale_constant(node, at, 1, factor, changes)
        if node.op in _OF_ONE:
            return self._try_scale_value(node.inputs[0], factor, changes, depth + 1)
        if node.op in _OF_ALL:
            return all(self._try_scale_one_operand(at, k, factor, changes, depth) for k in range(len(node.inputs)))
        if node.op == "Mul":
            return any(self._scale_operand_or_undo(at, k, factor, changes, depth) for k in (1, 0))
        return node.op == "Clip" and self._try_scale_clip(node, at, factor, changes, depth)

    def _try_scale_one_operand(
        self, at: int, position: int, factor: float, changes: dict[int, Node], depth: int
    ) -> bool:
        """Scale one operand, which is a constant or computed by nodes; return whether that is possible."""
        node = changes.get(at, self.draft.nodes[at])
        name = node.inputs[position]
        if name in self.draft.constants:
            return self._try_scale_constant(node, at, position, factor, changes)
        return self._try_scale_value(name, factor, changes, depth + 1)

    def _scale_operand_or_undo(
        self, at: int, position: int, factor: float, changes: dict[int, Node], depth: int
    ) -> bool:
        """Scale one operand of a product and return true; if that fails, undo the changes and return false."""
        before = dict(changes)
        if self._try_scale_one_operand(at, position, factor, changes, depth):
            return True
        changes.clear()
        changes.update(before)
        return False

    def _try_scale_clip(self, node: Node, at: int, factor: float, changes: dict[int, Node], depth: int) -> bool:
        bounds = [k for k in (1, 2) if self.draft.has_input(node, k)]
        if {"min", "max"} & set(node.attributes) or any(node.inputs[k] not in self.draft.constants for k in bounds):
            return False
        found = self._try_scale_value(node.inputs[0], factor, changes, depth + 1)
        return found and all(self._try_scale_one_operand(at, k, factor, changes, depth) for k in bounds)

    def _try_scale_constant(self, node: Node, at: int, position: int, factor: float, changes: dict[int, Node]) -> bool:
        """Let a node read a constant multiplied by ``factor`` in float64; return whether float32 holds the result."""
        name = node.inputs[position]
        held = self.draft.constants.get(name)
        if held is None or held.dtype != np.float32:
            return False
        array = self.exact.get(name, held.astype(np.float64)) * factor
        sizes = np.abs(array[array != 0])
        if not np.isfinite(array).all() or sizes.max(initial=0) > _MOST or sizes.min(initial=1) < _LEAST:
            return False
        scaled = self.constant(f"{name}/over", array)
        changes[at] = replace(node, inputs=(*node.inputs[:position], scaled, *node.inputs[position + 1 :]))
        return True
