"""Convolutions of any rank: groups, depthwise, strides, dilation, padding; of floats and of quantised integers."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from roller.expr import REDUCTION, Axis, Bound, Call, Cast, Index, Load, Scalar, Stage, Term, axis_index
from roller.model.steps import Value
from roller.onnx.building import Slide, const_of, ended, require_elements, require_shape, slide, types_of
from roller.onnx.lowering import Compute, Lowered, Site, Unsupported, lowers
from roller.onnx.rewriting import Steps
from roller.ops.build import Types, indices

#: One element of the image, or of the weights, at indices (and guards).
Element = Callable[[tuple[Index, ...], tuple[Bound, ...]], Scalar]


@lowers("Conv")
def convolution(site: Site) -> Lowered:
    """Lower a convolution to the form of :func:`roller.ops.conv2d`, or of its depthwise sibling; the bias ends it."""
    x, w, bias, y = site.required(0), site.required(1), site.input(2), site.output
    t = types_of(x, y)
    ending = None
    if bias is not None:
        added = t.load(bias.name, (axis_index("f"),))
        ending = lambda total: Call("add", (total, added))  # noqa: E731 - one expression, where its operand is
    return Compute(
        correlation(
            *_checked(site, x, w, y), y, t,
            lambda at, guard: t.load(x.name, at, guard),
            lambda at, guard: t.load(w.name, at, guard),
            ending,
        )
    )  # fmt: skip


@lowers("ConvInteger")
def integers(site: Site) -> Lowered:
    """Lower a convolution of 8-bit integers less their zero points, in 32 bits; padding counts as the zero point."""
    x, w, y = site.required(0), site.required(1), site.output
    zeros = site.constant(2)
    if zeros is None and site.input(2) is not None:
        return _centred_first(site)
    shift = int(zeros.ravel()[0]) if zeros is not None else 0
    minus = site.input(3)
    t = types_of(x, y)

    def image(at: tuple[Index, ...], guard: tuple[Bound, ...]) -> Scalar:
        value: Scalar = Cast("int32", Load(x.name, at, guard, float(shift) if guard else 0.0))
        return Call("sub", (value, const_of(shift, "int32"))) if shift else value

    def weight(at: tuple[Index, ...], guard: tuple[Bound, ...]) -> Scalar:
        value: Scalar = Cast("int32", Load(w.name, at, guard))
        if minus is None:
            return value
        where = () if not minus.shape else (at[0],) if minus.elements > 1 else (Index(),)
        return Call("sub", (value, Cast("int32", Load(minus.name, where))))

    return Compute(correlation(*_checked(site, x, w, y), y, t, image, weight))


def _centred_first(site: Site) -> Lowered:
    """Return the convolution of the image less its zero point, where only run time tells what to pad with."""
    steps, x, zero = Steps(site), site.required(0), site.required(2)
    wide = steps.add("Cast", (x,), x.shape, "int32", to=TensorProto.INT32)
    shift = steps.reshape(steps.add("Cast", (zero,), zero.shape, "int32", to=TensorProto.INT32), ())
    centred = steps.add("Sub", (wide, shift), x.shape)
    kept = dict(site.node.attributes)
    steps.append("ConvInteger", (centred, site.input(1), None, site.input(3)), (site.output,), **kept)
    return steps.done()


def _checked(site: Site, x: Value, w: Value, y: Value) -> tuple[int, int, Slide]:
    """Return groups, input channels per group, and the windows."""
    require_elements(site)
    groups = int(site.attribute("group", 1))
    if len(x.shape) < 3 or len(w.shape) != len(x.shape):
        raise Unsupported(f"expected an image and weights of equal rank, at least 3, got {x.shape} and {w.shape}")
    if groups < 1 or x.shape[1] != groups * w.shape[1] or w.shape[0] % groups:
        raise Unsupported(f"{groups} groups do not divide {x.shape[1]} channels by weights of shape {w.shape}")
    given = tuple(site.attribute("kernel_shape", ()) or w.shape[2:])
    if given != w.shape[2:]:
        raise Unsupported(f"kernel_shape {list(given)} is not that of the weights, {list(w.shape[2:])}")
    windows = slide(site, x.shape[2:], w.shape[2:])
    require_shape(y, (x.shape[0], w.shape[0], *(a.extent for a in windows.outs)))
    return groups, w.shape[1], windows


def correlation(
    groups: int, channels: int, windows: Slide, y: Value, t: Types, image: Element, weight: Element,
    ending: Callable[[Scalar], Scalar] | None = None,
) -> tuple[Stage, ...]:  # fmt: skip
    """Return the sums of products of windows and weights ``(f, channels, ...)``; axes ``n f <points> c <window>``.

    Parameters
    ----------
    channels
        Input channels of a group; where there is one (depthwise), the sum runs over the window alone.
    """
    filters = y.shape[1]
    per_group = filters // groups
    spatial = (Axis("n", y.shape[0]), Axis("f", filters), *windows.outs)
    taps = indices(windows.kernels)
    if groups > 1 and channels == 1:
        source = axis_index("f") if per_group == 1 else Index((Term("f", 1, per_group),))
        reduced, kernel = windows.kernels, (axis_index("f"), Index(), *taps)
    else:
        group = () if groups == 1 else (Term("f", channels, per_group),)
        source = Index((*group, Term("c")))
        reduced = (Axis("c", channels, REDUCTION), *windows.kernels)
        kernel = (axis_index("f"), axis_index("c"), *taps)
    body = Call("mul", (image((axis_index("n"), source, *windows.index), windows.guard), weight(kernel, ())))
    return ended(y, (*spatial, *reduced), indices(spatial), body, "sum", t, ending)
