"""Products with constant low-bit weights: 4 bits stay in bytes of two numbers, others are unpacked during tracing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from roller.models.onnx.low_bit_weights import is_packable
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
    if s.shape(a)[-1:] != (k,):
        raise Unsupported(f"MatMulNBits of {k} rows with an input of shape {list(s.shape(a))}")
    blocks = -(-k // block)
    groups = s.input(4)
    if groups and not np.array_equal(s.known(groups, "the order of its groups is"), np.arange(k) // block):
        raise Unsupported("MatMulNBits with groups in another order")
    packed = s.known(s.required(1), "its weights are").reshape(n, blocks, -1)
    scales = s.known(s.required(2), "its scales are").reshape(n, blocks)
    zeros = _block_zero_points(s, n, blocks, bits)
    whole = zeros is None or zeros.dtype == np.uint8
    if bits == 4 and whole and is_packable(k, block) and math.prod(s.shape(a)[:-1]) <= s.tracer.low_bit_rows:
        constants = [packed.transpose(1, 2, 0), scales.T, *([] if zeros is None else [zeros.T])]
        inputs = [a, *(s.constant(np.ascontiguousarray(c)) for c in constants)]
        y = s.add_own("MatMulLowBits", inputs, (*s.shape(a)[:-1], n), s.type(a).dtype)
    else:
        weights = _unpack_bits(packed, bits)[:, :, :block].astype(np.float32)
        shift = np.float32(1 << (bits - 1)) if zeros is None else zeros.astype(np.float32)[:, :, None]
        dense = ((weights - shift) * scales.astype(np.float32)[:, :, None]).reshape(n, blocks * block)[:, :k]
        y = s.add("MatMul", a, s.constant(np.ascontiguousarray(dense.T).astype(onnx_dtype(s.type(a).dtype))))
    return [s.add("Add", y, s.input(5)) if s.input(5) else y]


def _unpack_bits(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack each byte into numbers of fewer bits, from the lowest bits up."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def _block_zero_points(s: NodeRewrite, n: int, blocks: int, bits: int) -> np.ndarray | None:
    """Return the zero point of each block; ``None`` for half the range, the default."""
    if not s.input(3):
        return None
    held = s.known(s.input(3), "its zero points are")
    if held.dtype == np.uint8:
        held = _unpack_bits(held.reshape(n, -1), bits)[:, :blocks]
    return held.reshape(n, blocks)
