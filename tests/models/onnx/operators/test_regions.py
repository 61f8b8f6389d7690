"""Pooled regions against ONNX Runtime."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.lowering_oracle import agrees, node, runtime
from tests.offenders import every


@every("mode", ["avg", "max"])
@every("samples", [0, 2])
@every("halves", ["half_pixel", "output_half_pixel"])
def test_regions(mode, samples, halves):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 8, 9)).astype(np.float32)
    boxes = np.array([[0, 0, 6, 5], [1.5, 2, 8.5, 7], [3, 3, 3.5, 3.2], [-2, -1, 4, 12]], np.float32)
    arrays = [x, boxes, np.array([0, 1, 1, 0], np.int64)]
    op = node("RoiAlign", 3, mode=mode, output_height=3, output_width=2, sampling_ratio=samples, spatial_scale=0.9,
              coordinate_transformation_mode=halves, version=16)  # fmt: skip
    agrees(op, arrays, wanted=runtime(op, arrays))
