"""ONNX Runtime's own operators, as its optimised and quantised models hold them, spelled out by ONNX's.

One function per operator, decorated with :func:`roller.models.onnx.runtime_operators.rewrites.rewrites`.
"""

from roller.models.onnx.runtime_operators import attention, fused, normalising, quantised, weights

__all__ = ["attention", "fused", "normalising", "quantised", "weights"]
