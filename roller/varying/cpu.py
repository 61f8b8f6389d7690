"""What :mod:`roller.varying` asks of processors: whether one of their kernels is right at some sizes."""

from __future__ import annotations

import logging

from roller.expr import TensorExpr
from roller.hardware import DeviceSpec
from roller.varying import open_proof
from roller.varying.box import Sizes
from roller.varying.open_programs import OpenKernel
from roller.varying.prices import predicted

__all__ = ["UNUSED", "fault", "predicted"]

#: How loud it is said that a kernel is not used at some sizes: its code is for others, and the next best is asked.
UNUSED = logging.INFO


def fault(kernel: OpenKernel, expression: TensorExpr, sizes: Sizes, spec: DeviceSpec) -> str:
    """Return why a kernel cannot be used at some sizes; as :func:`roller.varying.open_proof.fault`."""
    return open_proof.fault(kernel, expression, sizes, spec.units)
