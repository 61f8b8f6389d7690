"""Integer representation of dequantized values: stored integers, scale, and zero point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roller.models.graph.model_graph import Node
from roller.models.onnx.mutable_graph import MutableGraph

#: Range of supported scales, which is far from the limits of float32.
_LEAST_SCALE, _MOST_SCALE = 1e-20, 1e20
#: Dtypes of integers in products, data movement and requantization.
BYTES = ("int8", "uint8")


@dataclass(frozen=True, eq=False)
class QuantisationParameters:
    """Quantization parameters: ``real = (integer - zero) * scale``.

    Parameters
    ----------
    scale
        Float32: a single number, or one per position along ``axis``.
    zero
        Zero points, in the stored dtype and with the shape of ``scale``.
    axis
        Axis of the scales; ``None`` if both are single numbers.
    """

    scale: np.ndarray
    zero: np.ndarray
    axis: int | None = None

    def same(self, other: QuantisationParameters) -> bool:
        """Return whether these parameters equal other ones."""
        return (
            self.axis == other.axis and self.zero.dtype == other.zero.dtype
            and np.array_equal(self.scale, other.scale) and np.array_equal(self.zero, other.zero)
        )  # fmt: skip

    def real(self, stored: np.ndarray) -> np.ndarray:
        """Return the real numbers that integers represent, computed in float32 like ``DequantizeLinear``."""
        shape = [1] * stored.ndim
        if self.axis is not None:
            shape[self.axis] = -1
        zero = self.zero.reshape(shape if self.axis is not None else ())
        scale = self.scale.reshape(shape if self.axis is not None else ())
        return np.asarray((stored.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale)


@dataclass(frozen=True, eq=False)
class IntegerForm:
    """A float value represented by integers: the name of the stored value, and its parameters."""

    stored: str
    parameters: QuantisationParameters


def parameters_of_quantisation_node(draft: MutableGraph, node: Node) -> QuantisationParameters | None:
    """Return the parameters of a ``QuantizeLinear`` or ``DequantizeLinear``; ``None`` if they are unsupported."""
    if node.domain or node.op not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    # Supported are float32 with 8-bit integers (32-bit ones for biases), without blocks, and with constant, positive
    # scales in the range above.
    source, result = draft.values[node.inputs[0]], draft.values[node.outputs[0]]
    stored, real = (source, result) if node.op == "DequantizeLinear" else (result, source)
    wide = node.op == "DequantizeLinear" and stored.dtype == "int32"
    if real.dtype != "float32" or not (stored.dtype in BYTES or wide) or node.attributes.get("block_size"):
        return None
    scale, zero = draft.constant_input(node, 1), draft.constant_input(node, 2)
    if scale is None or (zero is None and draft.has_input(node, 2)) or scale.dtype != np.float32:
        return None
    if not ((scale >= _LEAST_SCALE) & (scale <= _MOST_SCALE)).all() or not scale.size:
        return None
    zero = np.zeros(scale.shape, stored.dtype) if zero is None else zero
    if scale.size == 1 and zero.size == 1:
        return QuantisationParameters(scale.reshape(()), zero.reshape(()))
    rank = len(source.shape)
    axis = int(node.attributes.get("axis", 1))
    if scale.ndim != 1 or scale.shape != zero.shape or not -rank <= axis < rank:
        return None
    axis %= rank
    return QuantisationParameters(scale, zero, axis) if source.shape[axis] == scale.size else None
