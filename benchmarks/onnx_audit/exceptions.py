"""Where onnx's reference is wrong: the use of an operator, and what the specification says in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.onnx_audit.cases import Case


@dataclass(frozen=True)
class ReferenceError_:
    """A use of operators that the reference computes otherwise than specified.

    Parameters
    ----------
    operators
        Which.
    applies
        Whether a case is such a use.
    clause
        What the specification says, and what the reference does.
    alone
        Whether ONNX Runtime does not do as specified either; else a case is excepted only where it computes what roller
        does, or nothing.
    """

    operators: tuple[str, ...]
    applies: Callable[[Case], bool]
    clause: str
    alone: bool = False


def _said(case: Case, name: str, default: object = None) -> object:
    value = case.attributes().get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def _pads(case: Case) -> bool:
    return any(k in case.attributes() for k in ("pads", "auto_pad", "ceil_mode", "dilations", "strides"))


def _falls_short(case: Case) -> bool:
    """Whether a transposed convolution is to make more elements than its taps do."""
    x, w, said = case.feeds[0], case.feeds[1], case.attributes()
    if x is None or w is None or not ("auto_pad" in said or "output_shape" in said):
        return False
    rank = x.ndim - 2
    strides, extra = said.get("strides", [1] * rank), said.get("output_padding", [0] * rank)
    wanted = said.get("output_shape") or [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    dilations = said.get("dilations", [1] * rank)
    sides = zip(wanted, strides, x.shape[2:], extra, dilations, w.shape[2:], strict=True)
    return any(n > s * (m - 1) + e + d * (k - 1) + 1 for n, s, m, e, d, k in sides)


EXCEPTIONS: tuple[ReferenceError_, ...] = (
    ReferenceError_(
        ("Softmax", "LogSoftmax", "Hardmax"), lambda c: c.version < 13,
        "before version 13 'the input does not need to explicitly be a 2D vector; rather, it will be coerced "
        "into one' at axis, and the default of axis is 1; the reference reduces the one axis, as version 13 "
        "does",
    ),
    ReferenceError_(
        ("AveragePool",), lambda c: c.version == 1,
        "an average is 'on all values of a subset of the input tensor': padding is not such a value, and "
        "count_include_pad is 0 by default in the versions that have it; the reference counts the padding in the "
        "version without the attribute",
    ),
    ReferenceError_(
        ("MaxPool",), lambda c: _pads(c),
        "pads are '[x1_begin, x2_begin...x1_end, x2_end,...]', SAME_LOWER makes ceil(input / strides) elements, and "
        "Indices count 'in the flatten tensor'; the reference computes other sizes or indices for some paddings of "
        "images",
    ),
    ReferenceError_(
        ("LpPool",), lambda c: str(_said(c, "auto_pad")).startswith("SAME") and "dilations" in c.attributes(),
        "auto_pad pads 'so that output_shape[i] = ceil(input_shape[i] / strides[i])' with windows of "
        "(kernel - 1) * dilation + 1 elements; the reference and ONNX Runtime leave out the dilation",
        alone=True,
    ),
    ReferenceError_(
        ("BatchNormalization",), lambda c: c.version < 15,
        "Y is (X - mean) / sqrt(var + epsilon) * scale + B with the attribute epsilon; the reference ignores "
        "the node's attribute in these versions",
    ),
    ReferenceError_(
        ("LayerNormalization",), lambda c: any(a is not None and a.dtype.itemsize != 4 for a in c.feeds),
        "Mean and InvStdDev are of type U, that of stash_type (float); the reference returns them in the type "
        "of X",
    ),
    ReferenceError_(
        ("ReduceSumSquare", "ReduceSum", "ReduceProd", "ReduceL1"), lambda c: True,
        "the result has the type of the data, T; the reference sums integers of 32 bits and less in 64 bits",
    ),
    ReferenceError_(
        ("QuantizeLinear",), lambda c: any(a is not None and a.dtype.name == "float16" for a in c.feeds),
        "a quotient beyond the range saturates; the reference overflows in float16",
    ),
    ReferenceError_(
        ("DynamicQuantizeLinear",), lambda c: c.feeds[0] is not None and not c.feeds[0].any(),
        "y_scale = (maximum(0, max(x)) - minimum(0, min(x))) / (qmax - qmin) is 0 for an input of zeros and for an "
        "empty input, and the zero point 0 / 0; roller and ONNX Runtime have the scale 1, the reference has 1 / 255",
    ),
    ReferenceError_(
        ("ConvTranspose",), lambda c: c.version == 1 and _said(c, "output_shape") is not None,
        "version 1 has 'If (auto_pads != SAME_UPPER): pads[start_i] = total_padding[i]/2', the odd element at "
        "the end; the reference and ONNX Runtime follow version 11",
        alone=True,
    ),
    ReferenceError_(
        ("ConvTranspose",), _falls_short,
        "pads 'can take any value greater than or equal to 0': what a size asks beyond what the taps make "
        "stands where output_padding adds elements, 'to the side with higher coordinate indices'; the "
        "reference pads by -1",
        alone=True,
    ),
    ReferenceError_(
        ("AffineGrid",), lambda c: c.feeds[0] is not None and c.feeds[0].dtype.name != "float32",
        "the grid has the type of theta, T1; the reference returns float32, and the definition that ONNX Runtime "
        "runs rounds intermediate results",
        alone=True,
    ),
    ReferenceError_(
        ("RoiAlign",), lambda c: c.version == 10,
        "version 10 has no coordinate_transformation_mode, and to 'omit the pixel shift' is what version 16 calls "
        "backward-compatible; the reference shifts by half a pixel",
    ),
    ReferenceError_(
        ("Resize",), lambda c: _said(c, "keep_aspect_ratio_policy", "stretch") != "stretch"
        and min([0, *c.attributes().get("axes", ())]) < 0,
        "of axes a 'negative value means counting dimensions from the back'; the reference and ONNX Runtime "
        "forget these where keep_aspect_ratio_policy looks for the smallest or largest scale",
        alone=True,
    ),
    ReferenceError_(
        ("Resize",), lambda c: _said(c, "coordinate_transformation_mode") in ("align_corners", "pytorch_half_pixel"),
        "length_resized is 'the length of the resized tensor in axis x', a whole number; the reference takes "
        "the scale times the old length",
    ),
)  # fmt: skip


def exception_of(case: Case) -> ReferenceError_ | None:
    """Return where the reference is wrong about a case, ``None`` where it is not known to be."""
    return next((e for e in EXCEPTIONS if case.operator in e.operators and e.applies(case)), None)
