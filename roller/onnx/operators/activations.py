"""Element-wise functions of one tensor."""

from __future__ import annotations

from roller.expr import Axis, Const, Load, Stage, Tensor, axis_index
from roller.onnx.lowering import Compute, Lowered, Site, lowers
from roller.ops.scalars import ELEMENT_FUNCTIONS

_BY_OP = {"Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Exp": "exp", "Sqrt": "sqrt", "Erf": "erf"}


@lowers(*_BY_OP)
def unary(site: Site) -> Lowered:
    """Lower a function of one tensor without parameters."""
    x, y = site.required(0), site.output
    axes = tuple(Axis(f"d{d}", e) for d, e in enumerate(x.shape))
    at = tuple(axis_index(a.name) for a in axes)
    body = ELEMENT_FUNCTIONS[_BY_OP[site.node.op]].build(lambda v: Const(v, x.dtype), Load(x.name, at))
    return Compute((Stage(Tensor(y.name, y.shape, y.dtype), axes, at, body, None, x.dtype),))
