"""Rewrites ONNX Runtime's own operators, which its optimized and quantized models contain, to ONNX operators.

Each operator has a function, decorated with :func:`roller.models.onnx.runtime_operators.rewrites.rewrites`.
"""

from roller.models.onnx.runtime_operators import attention, fused, normalising, quantised, weights

__all__ = ["attention", "fused", "normalising", "quantised", "weights"]
