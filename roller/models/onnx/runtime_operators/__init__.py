"""ONNX Runtime's own operators, as in its optimised and quantised models, rewritten by ONNX operators.

One function per operator, decorated with :func:`roller.models.onnx.runtime_operators.rewrites.rewrites`.
"""

from roller.models.onnx.runtime_operators import attention, fused, normalising, quantised, weights

__all__ = ["attention", "fused", "normalising", "quantised", "weights"]
