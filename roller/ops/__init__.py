"""Ready operators, one file each; ``REGISTRY`` maps names to functions, and ``ONNX_NAMES`` maps ONNX types to names."""

from roller.ops.blocked import from_blocked, to_blocked
from roller.ops.conv2d import conv2d
from roller.ops.depthwise_conv2d import depthwise_conv2d
from roller.ops.elementwise import elementwise
from roller.ops.matmul import matmul
from roller.ops.norms import layer_norm, rms_norm
from roller.ops.parse import parse
from roller.ops.pool2d import pool2d
from roller.ops.reduce import reduce
from roller.ops.registry import ONNX_NAMES, REGISTRY
from roller.ops.softmax import softmax
from roller.ops.spec import from_spec

__all__ = [
    "ONNX_NAMES", "REGISTRY", "conv2d", "depthwise_conv2d", "elementwise", "from_blocked", "from_spec", "layer_norm",
    "matmul", "parse", "pool2d", "reduce", "rms_norm", "softmax", "to_blocked",
]  # fmt: skip
