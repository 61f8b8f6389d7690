"""Resize and Upsample: modes, coordinates, regions, axes."""

from __future__ import annotations

import numpy as np

from tests.models.onnx.families.making import FamilyMaker

_COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
                "half_pixel_symmetric"]  # fmt: skip


def resize(m: FamilyMaker) -> None:
    """Add a Resize (an Upsample before operator set 10)."""
    mode = m.one(["nearest", "nearest", "linear", "cubic"])
    rank = m.one([1, 2, 3, 4, 4, 5]) if mode != "cubic" else m.one([2, 4, 4])
    x = m.value(tuple(m.one([1, 2, 3, 4, 5]) for _ in range(rank)), exact=True, constant=False)
    if m.opset < 11:
        _upsample(m, x, mode if mode != "cubic" else "linear")
        return
    at: dict = {"mode": mode, "coordinate_transformation_mode": m.one(_COORDINATES[: 6 if m.opset >= 19 else 5])}
    shape = m.shape_of(x)
    axes = list(range(rank))
    if m.opset >= 18 and m.flip(0.4):
        axes = [int(a) for a in m.rng.permutation(rank)[: m.one([1, 2, rank])]]
        at["axes"] = axes
    if mode != "nearest" and rank > 2 and m.flip(0.8):  # what ONNX Runtime resamples: the last two
        kept = {rank - 2, rank - 1} if rank != 3 else {1, 2}
    else:
        kept = set(range(rank))
    factors = [m.one([1.0, 2.0, 0.5, 1.5, 0.6, 2.6, 3.0]) if a in kept and m.flip(0.8) else 1.0 for a in axes]
    # Where the length is not the same in float32 and float64, ONNX and ONNX Runtime have different shapes.
    factors = [f if int(np.float32(f) * np.float32(shape[a])) == int(float(np.float32(f)) * shape[a]) else 1.0
               for a, f in zip(axes, factors, strict=True)]  # fmt: skip
    at |= _details(m, mode)
    roi = ""
    if at["coordinate_transformation_mode"] == "tf_crop_and_resize":
        begin = [float(m.one([0.0, 0.2, -0.3])) if f != 1 else 0.0 for f in factors]
        end = [float(m.one([1.0, 0.7, 1.4])) if f != 1 else 1.0 for f in factors]
        roi = m.put(np.asarray(begin + end, np.float32), constant=True)
        at["extrapolation_value"] = m.one([0.0, -2.5])
    whole = all(float(np.float32(f) * shape[a]).is_integer() for a, f in zip(axes, factors, strict=True))
    # Of a length that is no whole number ONNX aligns the exact corner, ONNX Runtime that of the result.
    if m.flip() and (whole or at["coordinate_transformation_mode"] != "align_corners"):
        inputs = [x, roi, m.put(np.asarray(factors, np.float32), constant=True)]
    else:
        sizes = [max(1, int(shape[a] * f)) for a, f in zip(axes, factors, strict=True)]
        if m.opset >= 18 and m.flip(0.4) and at["coordinate_transformation_mode"] != "align_corners":
            at["keep_aspect_ratio_policy"] = m.one(["not_larger", "not_smaller", "stretch"])
        elif "axes" in at:  # ONNX Runtime forgets them in a policy where they count from the end
            at["axes"] = [a - rank if m.flip(0.3) else a for a in axes]
        inputs = [x, roi, "", m.put(np.asarray(sizes, np.int64), constant=True)]
    m.node("Resize", inputs, **at)


def _details(m: FamilyMaker, mode: str) -> dict:
    at: dict = {}
    if mode == "nearest" and m.flip(0.8):
        at["nearest_mode"] = m.one(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        at |= ({"cubic_coeff_a": m.one([-0.5, -0.75, -1.0])} if m.flip() else {}) | (
            {"exclude_outside": 1} if m.flip(0.4) else {}
        )
    if mode != "nearest" and m.opset >= 18 and m.flip(0.4):
        at["antialias"] = 1
    return at


def _upsample(m: FamilyMaker, x: str, mode: str) -> None:
    rank = len(m.shape_of(x))
    grow = [1.0, 2.0, 1.5, 3.0]
    if rank == 4 or mode == "nearest":
        factors = [
            m.one(grow if m.opset < 10 else [*grow, 0.5, 0.6]) if a >= rank - 2 or mode == "nearest" else 1.0
            for a in range(rank)
        ]
        if m.opset < 9:
            m.node("Upsample", [x], mode=mode, scales=factors)
        else:
            op = "Upsample" if m.opset == 9 else "Resize"
            m.node(op, [x, m.put(np.asarray(factors, np.float32), constant=True)], mode=mode)


FUNCTIONS = (resize,)
