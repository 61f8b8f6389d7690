"""Element-wise functions of one tensor."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.lowering_oracle import agrees, node
from tests.offenders import every


@every("op", ["Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Erf"])
def test_functions_of_one_tensor(op):
    agrees(node(op, 1), [np.linspace(0.1, 3, 24, dtype=np.float32).reshape(2, 3, 4)])
