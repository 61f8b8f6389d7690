"""ONNX Runtime's own operators, found in its optimized and quantized models, rewritten as ONNX operators.

One function per operator, decorated with :func:`roller.models.onnx.runtime_operators.rewrites.rewrites`.
"""

from roller.models.onnx.runtime_operators import attention, fused, normalising, quantised, weights

__all__ = ["attention", "fused", "normalising", "quantised", "weights"]
