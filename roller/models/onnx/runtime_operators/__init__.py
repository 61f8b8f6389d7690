"""Rewrites ONNX Runtime's own operators, which its optimized and quantized models contain, to ONNX operators.

Each operator has a function, decorated with :func:`roller.models.onnx.runtime_operators.rewrites.register_rewrite`.
"""

from roller.models.onnx.runtime_operators import (
    contrib_attention,
    contrib_fused_operators,
    contrib_grouped_attention,
    contrib_low_bit_weights,
    contrib_normalisation,
    contrib_quantised,
)

__all__ = [
    "contrib_attention", "contrib_fused_operators", "contrib_grouped_attention", "contrib_low_bit_weights",
    "contrib_normalisation", "contrib_quantised",
]  # fmt: skip
