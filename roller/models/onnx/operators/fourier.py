"""Lowerings of discrete Fourier transforms, as products with tables of cosines and sines."""

from __future__ import annotations

import numpy as np

from roller.expr import REDUCTION, Axis, Index, Load, Scalar, Stage, Term, axis_index
from roller.models.onnx.build_elementwise_stages import (
    computation_dtype,
    convert_scalar,
    kernel_tensor_of_value,
    require_dtype,
    result_axes,
    scalar_call,
)
from roller.models.onnx.lowering_registry import Compute, Lowered, Site, Unsupported, lowers
from roller.models.onnx.operators.movement import normalise_axis
from roller.ops.operator_argument_checks import identity_indices
from roller_runtime.core.dtypes import FLOATS, numpy_dtype

#: Maximum number of elements in a table; longer transforms are refused, because the product has quadratic cost.
_MOST_TABLE = 1 << 24


def _fourier_table(bins: int, length: int, taken: int, parts: int, inverse: bool) -> np.ndarray:
    """Return the factor of part c of sample n in part o of bin k, float64, shape ``(bins, taken, parts, 2)``."""
    if bins * taken * parts * 2 > _MOST_TABLE:
        raise Unsupported(f"a transform of {length} samples: longer than tables are made for")
    turn = 2 * np.pi * np.outer(np.arange(bins), np.arange(taken)) % (2 * np.pi * length) / length
    cosine, sine = np.cos(turn), np.sin(turn) * (1 if inverse else -1)
    table = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)], axis=2)[:, :, :parts]
    return np.asarray(table / length if inverse else table)


@lowers("DFT")
def lower_dft(site: Site) -> Lowered:
    """Lower ``DFT`` along one axis; the last dimension contains real and imaginary parts."""
    x, y = kernel_tensor_of_value(site.required(0)), kernel_tensor_of_value(site.output)
    require_dtype(site.output, FLOATS, "DFT")
    rank, inverse, onesided = len(x.shape), bool(site.attribute("inverse", 0)), bool(site.attribute("onesided", 0))
    if inverse and onesided:
        raise Unsupported("DFT that is inverse and onesided")
    given = site.known(2, "DFT's axis")
    default = 1 if site.node.version < 20 else -2
    d = normalise_axis(int(np.ravel(given)[0]) if given is not None else int(site.attribute("axis", default)), rank)
    length = site.known(1, "DFT's length")
    size = x.shape[d] if length is None else int(np.ravel(length)[0])
    acc = computation_dtype(x.dtype)
    values = _fourier_table(y.shape[d], size, min(size, x.shape[d]), x.shape[-1], inverse)
    axes = result_axes(y.shape)
    n, c = Axis("sample", values.shape[1], REDUCTION), Axis("part", x.shape[-1], REDUCTION)
    index = list(identity_indices(axes))
    index[d], index[-1] = axis_index("sample"), axis_index("part")
    read = convert_scalar(Load(x.name, tuple(index)), x.dtype, acc)
    weight = Load(
        f"{y.name}/turns", (*(axis_index(a) for a in (axes[d].name, "sample", "part")), identity_indices(axes)[-1])
    )
    stage = Stage(y, (*axes, n, c), identity_indices(axes), scalar_call("mul", read, weight), "sum", acc)
    return Compute((stage,), {f"{y.name}/turns": values.astype(numpy_dtype(acc))})


@lowers("STFT")
def lower_stft(site: Site) -> Lowered:
    """Lower ``STFT``: the transforms of windows that slide along a signal."""
    x, y = kernel_tensor_of_value(site.required(0)), kernel_tensor_of_value(site.output)
    require_dtype(site.output, FLOATS, "STFT")
    step, given = site.known(1, "STFT's step"), site.known(3, "STFT's length")
    window = site.input(2)
    if step is None or (given is None and window is None):
        raise Unsupported("STFT without a step, or without the length of its frames")
    length = int(np.ravel(given)[0]) if given is not None else (window.shape[0] if window else 0)
    acc, parts = computation_dtype(x.dtype), x.shape[2] if len(x.shape) > 2 else 1
    values = _fourier_table(y.shape[2], length, length, parts, False)
    axes = result_axes(y.shape)
    batch, _, k, out = identity_indices(axes)
    at = Index((Term(axes[1].name, int(np.ravel(step)[0])), Term("sample")))
    index = (batch, at) if len(x.shape) == 2 else (batch, at, axis_index("part"))
    read: Scalar = convert_scalar(Load(x.name, index), x.dtype, acc)
    if window is not None:
        read = scalar_call(
            "mul",
            read,
            convert_scalar(Load(kernel_tensor_of_value(window).name, (axis_index("sample"),)), window.dtype, acc),
        )
    weight = Load(f"{y.name}/turns", (k, axis_index("sample"), axis_index("part"), out))
    inner = (Axis("sample", length, REDUCTION), Axis("part", parts, REDUCTION))
    stage = Stage(y, (*axes, *inner), identity_indices(axes), scalar_call("mul", read, weight), "sum", acc)
    return Compute((stage,), {f"{y.name}/turns": values.astype(numpy_dtype(acc))})
