"""Ready operators: each builds a TensorExpr; none imports TVM or touches a device.

One file per operator; ``REGISTRY`` maps names to functions and ``ONNX_NAMES`` ONNX types to names.
"""

from roller.ops.conv2d import conv2d
from roller.ops.matmul import matmul
from roller.ops.registry import ONNX_NAMES, REGISTRY

__all__ = ["ONNX_NAMES", "REGISTRY", "conv2d", "matmul"]
