"""Products with constant low-bit weights, which are unpacked during tracing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from roller.models.onnx.lowering_registry import Unsupported
from roller.models.onnx.onnx_types import onnx_dtype
from roller.models.onnx.runtime_operators.rewrites import NodeRewrite, register_rewrite


@register_rewrite("MatMulNBits")
def rewrite_matmul_n_bits(s: NodeRewrite) -> Sequence[str]:
    """Rewrite a product with weights packed in blocks along the summed axis; each block has a scale and zero point."""
    a, bits, block = s.required(0), int(s.attribute("bits", 4)), int(s.attribute("block_size", 0))
    n, k = int(s.attribute("N")), int(s.attribute("K"))
    if bits not in (2, 4, 8) or block < 1 or min(n, k) < 1:
        raise Unsupported(f"MatMulNBits of {bits} bits in blocks of {block}")
    blocks = -(-k // block)
    groups = s.input(4)
    if groups and not np.array_equal(s.known(groups, "the order of its groups is"), np.arange(k) // block):
        raise Unsupported("MatMulNBits with groups in another order")
    packed = s.known(s.required(1), "its weights are").reshape(n, blocks, -1)
    scales = s.known(s.required(2), "its scales are").astype(np.float32).reshape(n, blocks, 1)
    weights = _unpack_bits(packed, bits)[:, :, :block].astype(np.float32)
    zeros = _block_zero_points(s, n, blocks, bits)
    dense = ((weights - zeros) * scales).reshape(n, blocks * block)[:, :k]
    right = s.constant(np.ascontiguousarray(dense.T).astype(onnx_dtype(s.type(a).dtype)))
    y = s.add("MatMul", a, right)
    return [s.add("Add", y, s.input(5)) if s.input(5) else y]


def _unpack_bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack each byte into numbers of fewer bits, from the lowest bits up."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _block_zero_points(s: NodeRewrite, n: int, blocks: int, bits: int) -> np.ndarray:
    """Return the zero point of each block; by default, half the range."""
    if not s.input(3):
        return np.full((1, 1, 1), 1 << (bits - 1), np.float32)
    held = s.known(s.input(3), "its zero points are")
    if held.dtype == np.uint8:
        held = _unpack_bits(held.reshape(n, -1), bits)[:, :blocks]
    return held.astype(np.float32).reshape(n, blocks, 1)
