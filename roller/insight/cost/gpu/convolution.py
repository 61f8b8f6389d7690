"""Convolutions of one to three dimensions and their gradients, in the variants that a library may run."""

# A matrix unit's kernels take images with channels innermost. For planes of channels, or channels that do not form
# whole vectors, cuDNN converts operands before such a kernel and results after it (convolution guide of NVIDIA's deep
# learning performance documentation, "Tensor Layouts In Memory"). Kernels on threads take tensors unchanged, and may
# use Winograd's algorithm for windows of three by three at stride one. The library runs the fastest kernel.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu import depthwise
from roller.insight.cost.gpu.operator_view import View, element_count, total_bytes
from roller.insight.cost.gpu.pointwise import elementwise_kernel
from roller.insight.cost.launches import Fused, Instructions, Kernel, Launch, Stream, Units, Way
from roller.insight.trace.convolution_layout import (
    channels_innermost,
    is_converted,
    is_depthwise,
    multiplies_planes,
    padded_channels,
    suggests_innermost,
    vector_channels,
)
from roller.insight.trace.trace import TensorRecord


@dataclass(frozen=True)
class _Geometry:
    """Windows and groups of a convolution, and whether the channels of its tensors are innermost."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    innermost: bool


def convolution(view: View) -> tuple[Launch, ...]:
    """Return the kernel for a convolution and the kernel that adds its bias."""
    x, weight = view.tensor("self") or view.required_tensor("input", 0), view.required_tensor("weight", 1)
    copies = _copies_before_depthwise(_geometry(view, x, weight), weight, (x,))
    kernels, bias = (*copies, _convolution_kernel(view, x, weight, view.out)), view.tensor("bias")
    return kernels if bias is None else (*kernels, *_add_bias(view.out, bias))


def _copies_before_depthwise(g: _Geometry, weight: TensorRecord, images: Sequence[TensorRecord]) -> tuple[Stream, ...]:
    """Return PyTorch's conversions of images before a depthwise convolution with channels innermost."""
    return (
        conversions_to_innermost(images, (), g.groups)
        if g.innermost and is_depthwise(weight, g.groups, g.transposed)
        else ()
    )


def conversions_to_innermost(
    read: Sequence[TensorRecord], written: Sequence[TensorRecord], groups: int
) -> tuple[Stream, ...]:
    """Return the kernels that convert tensors to channels-innermost whole vectors, and results back."""
    # Channels of groups are not padded to whole vectors.
    found = []
    for tensor, is_read in (*((t, True) for t in read), *((t, False) for t in written)):
        if not is_converted(tensor, groups):
            continue
        own = float(total_bytes((tensor,)))
        other = own * padded_channels(tensor, groups) / tensor.shape[1]
        found.append(Stream(own, other) if is_read else Stream(other, own))
    return tuple(found)


def _add_bias(out: TensorRecord, bias: TensorRecord) -> tuple[Launch, ...]:
    if len(out.shape) < 3:  # no batch and no points
        return (Stream(total_bytes((out, bias)), total_bytes((out,))),)
    along = TensorRecord((out.shape[1], *(1,) * (len(out.shape) - 2)), (1,) * (len(out.shape) - 1), bias.dtype, -1)
    return elementwise_kernel(("add",), out, (out, along))


def convolution_backward(view: View) -> tuple[Launch, ...]:
    """Return up to three kernels, for the gradients of the image, the weights and the bias."""
    gradient, x = view.required_tensor("grad_output", 0), view.required_tensor("input", 1)
    weight = view.required_tensor("weight", 2)
    wanted: Sequence[bool] = view.argument("output_mask", (True, True, False))
    geometry = _geometry(view, x, weight)
    found: list[Launch] = [*_copies_before_depthwise(geometry, weight, (gradient, x))]
    if wanted[0]:
        found += _image_gradient(geometry, gradient, x, weight)
    if wanted[1]:
        found.append(_weight_gradient(geometry, gradient, x, weight))
    if wanted[2]:
        found.append(Stream(total_bytes((gradient,)), total_bytes(view.outputs[-1:])))
    return tuple(found)


def _implicit_product(
    product: TensorExpr, read: Sequence[TensorRecord], written: TensorRecord, units: Units, ways: tuple[Way, ...] = ()
) -> Kernel | Fused:
    """Return the kernel for an implicit GEMM, which gathers one operand from windows of an image."""
    # The product names an element once per window, but memory delivers each tensor once. If every window is a point,
    # the product's operands are the tensors themselves.
    moved = total_bytes(read), total_bytes((written,))
    named = (sum(t.nbytes for t in product.inputs), sum(t.nbytes for t in product.output_tensors))
    if moved == named:
        return Kernel(product, units=units, kind="convolution", ways=ways)
    return Fused((product,), 0.0, *moved, units=units, kind="convolution", ways=ways)


def _per_dimension(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one value per dimension; a single value applies to all."""
    listed = tuple(values)
    return listed * rank if len(listed) == 1 and rank > 1 else listed


def _geometry(view: View, x: TensorRecord, weight: TensorRecord) -> _Geometry:
    rank = len(x.shape) - 2
    ones = (1,) * rank
    stride, padding = view.argument("stride", ones), view.argument("padding", (0,) * rank)
    return _Geometry(
        _per_dimension(stride, rank),
        _per_dimension(padding, rank),
        _per_dimension(view.argument("dilation", ones), rank),
        int(view.argument("groups", 1)),
        bool(view.argument("transposed", False)),
        (channels_innermost(x) and x.shape[1] > 1) or suggests_innermost(weight),
    )


def _merge_to_two_dimensions(sizes: Sequence[int]) -> tuple[int, int]:
    """Return two dimensions: all outer dimensions merged into one, and a row."""
    return (1, sizes[0]) if len(sizes) == 1 else (math.prod(sizes[:-1]), sizes[-1])


def _convolution_kernel(view: View, x: TensorRecord, weight: TensorRecord, out: TensorRecord) -> Launch:
    rank, g = len(x.shape) - 2, _geometry(view, x, weight)
    if g.transposed or rank > 2:
        product = _as_product(x if g.transposed else out, weight, out, g.groups)
        return _product_in_all_ways(g, product, (product,), (x, weight), out)
    windows = _Windows(
        x.shape[0], _merge_to_two_dimensions(x.shape[2:]), _merge_to_two_dimensions(weight.shape[2:]),
        _as_pair(g.stride, 1), _as_pair(g.padding, 0), _as_pair(g.dilation, 1), g.groups, x.dtype,
    )  # fmt: skip
    if is_depthwise(weight, g.groups, g.transposed):
        own = _innermost_depthwise(g, weight, out, (x, weight), out)
        own = own if g.innermost else depthwise.forward(x, weight, out, g.stride, g.dilation)
        before = _before_cudnn_9(g, weight, out, (x, weight), out)
        planar = windows.expression(x.shape[1], weight.shape[0], False)
        return Kernel(planar, units="planar", own_kernel=own, before_cudnn_9=before)
    around = conversions_to_innermost((x, weight), (out,), g.groups)
    planes = multiplies_planes(weight, g.stride, g.padding, g.groups)
    found = _windows_in_all_ways(windows, x.shape[1], weight.shape[0], around, planes)
    return replace(found, before_cudnn_9=_before_cudnn_9(g, weight, out, (x, weight), out))


#: Channels of a group for which cuDNN 8 had matrix-unit kernels on channels innermost: assumed to be ResNeXt's. For 64,
#: profiles show direct kernels instead (pytorch/pytorch#34977); other numbers are assumed to have those, too.
_GROUPS_OF_CUDNN_8 = (4, 8, 16, 32)


def _before_cudnn_9(
    g: _Geometry, weight: TensorRecord, points: TensorRecord, read: Sequence[TensorRecord], written: TensorRecord
) -> Instructions | None:
    """Return the direct kernel for groups with channels innermost; ``None`` if a matrix unit ran them."""
    # ``points`` is the tensor at whose points all windows are multiplied.
    alike = weight.shape[0] // g.groups == weight.shape[1] and weight.shape[1] in _GROUPS_OF_CUDNN_8
    if g.groups == 1 or not g.innermost or alike or weight.dtype not in ("float16", "bfloat16"):
        return None
    return depthwise.direct_kernel(points.shape[0] * math.prod(points.shape[2:]) * element_count(weight), read, written)


def _innermost_depthwise(
    g: _Geometry, weight: TensorRecord, points: TensorRecord, read: Sequence[TensorRecord], written: TensorRecord
) -> Fused | Instructions | None:
    """Return the kernel that replaces a depthwise one with channels innermost; ``None`` if cuDNN has one."""
    if not g.innermost or {*weight.shape[2:]} <= {*depthwise.INNERMOST_WINDOWS}:
        return None
    if weight.dtype in ("float16", "bfloat16"):
        return depthwise.padded_groups(points, weight, read, written)
    return depthwise.direct_kernel(math.prod(points.shape) * math.prod(weight.shape[2:]), read, written)


@dataclass(frozen=True)
class _Windows:
    """A two-dimensional convolution without its channel counts."""

    batch: int
    size: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, ...]
    dilation: tuple[int, int]
    groups: int
    dtype: str

    def expression(self, channels: int, filters: int, innermost: bool) -> TensorExpr:
        layouts = ("NHWC", "OHWI") if innermost else ("NCHW", "OIHW")
        return ops.conv2d(
            self.batch, channels, *self.size, filters, *self.window, self.stride, self.padding, self.dilation,
            self.groups, *layouts, dtype=self.dtype,
        )  # fmt: skip

    @property
    def may_use_winograd(self) -> bool:
        """Whether cuDNN has Winograd kernels for the convolution: float32, 3x3 windows, stride one."""
        steps = {*self.stride, *self.dilation, self.groups}
        return self.dtype == "float32" and self.window == (3, 3) and steps == {1}


def _windows_in_all_ways(
    windows: _Windows, channels: int, filters: int, around: tuple[Stream, ...], planes: bool = False
) -> Kernel:
    """Return a convolution's kernel on unconverted tensors, with variants in other layouts and algorithms."""
    # Layouts of groups cost the same, since a group's channels are not an axis of the product on the units. With
    # ``planes`` the convolution is also a matrix product in planes of channels: filters by the planes of an image.
    groups = windows.groups
    if groups == 1 and not around:
        return Kernel(windows.expression(channels, filters, True), kind="convolution")
    planar, ways = windows.expression(channels, filters, False), list[Way]()
    if groups == 1:
        padded = (vector_channels(channels, windows.dtype), vector_channels(filters, windows.dtype))
        ways.append(Way(Kernel(windows.expression(*padded, True), kind="convolution"), around))
        if planes:
            ways.append(Way(Kernel(planar, units="matrix", kind="convolution")))
    else:
        for together in _groups_together(channels // groups, filters // groups, groups):
            blocks = -(-groups // together)
            own, others = (blocks * together * (side // groups) for side in (channels, filters))
            merged = replace(windows, groups=blocks).expression(own, others, blocks == 1)
            ways.append(Way(Kernel(merged, units="matrix", kind="convolution"), around))
    if windows.may_use_winograd:
        ways.append(Way(Kernel(planar, units="winograd")))
    return Kernel(planar, units="planar" if around else "any", kind="convolution", ways=tuple(ways))


#: Channels to which small groups are merged, so that they fill the sides of a matrix unit's fragment.
_MERGED_CHANNELS = (16, 32)


def _groups_together(channels: int, filters: int, groups: int) -> list[int]:
    """Return how many groups a matrix unit's kernel may treat as one: a single group, or blocks padded with zeros."""
    # If the number does not divide the groups, the last block is padded with groups of zeros.
    own = max(channels, filters)
    merged = (min(groups, side // own) for side in _MERGED_CHANNELS if side > own)
    return list(dict.fromkeys((1, *(n for n in merged if n > 1))))


def _product_in_all_ways(
    g: _Geometry, own: TensorExpr, others: Sequence[TensorExpr], read: Sequence[TensorRecord], written: TensorRecord
) -> Kernel | Fused:
    """Return the kernel for a product whose operands are images, with variants in another layout."""
    # ``own`` is the product on unconverted tensors, ``others`` are the products of a matrix unit's kernels.
    around = conversions_to_innermost(read, (written,), g.groups)
    if not around and len(others) == 1:
        return _implicit_product(others[0], read, written, "any")
    ways = tuple(Way(_implicit_product(other, read, written, "matrix"), around) for other in others)
    return _implicit_product(own, read, written, "planar" if around else "any", ways)


def _as_pair(values: Sequence[int], one: int) -> tuple[int, int]:
    """Return two values for a window of one or two dimensions."""
    return (values[0], values[1]) if len(values) == 2 else (one, values[0])


def _as_product(points: TensorRecord, weight: TensorRecord, out: TensorRecord, groups: int) -> TensorExpr:
    """Return the matrix product with a convolution's multiplications: result points by filters."""
    # The whole window is multiplied at each of ``points``: the points of the result or of a transposed convolution's
    # image.
    m = points.shape[0] * math.prod(points.shape[2:])
    window = math.prod(weight.shape[2:])
    per_group = weight.shape[0] // groups
    return ops.matmul(
        m, per_group, weight.shape[1] * window, None if groups == 1 else groups, dtype=out.dtype
    )  # fmt: skip


def _image_gradient(g: _Geometry, gradient: TensorRecord, x: TensorRecord, weight: TensorRecord) -> tuple[Launch, ...]:
    """Return the kernels for the image gradient: each gradient element is spread over a window; overlaps are summed."""
    # At stride 1 this is a convolution of the gradient; at a larger stride it has as many multiplications as the
    # forward convolution, and writes the larger image.
    if len(x.shape) > 4 or g.transposed:
        product = _as_product(x if g.transposed else gradient, weight, x, g.groups)
        return (_product_in_all_ways(g, product, (product,), (gradient, weight), x),)
    (h, w), (kh, kw) = _merge_to_two_dimensions(gradient.shape[2:]), _merge_to_two_dimensions(weight.shape[2:])
    dilation = _as_pair(g.dilation, 1)
    reach = tuple((k - 1) * d for k, d in zip((kh, kw), dilation, strict=True))
    pads = tuple(side for r in reach for side in (r // 2, r - r // 2))  # before and after, per dimension
    windows = _Windows(x.shape[0], (h, w), (kh, kw), (1, 1), pads, dilation, g.groups, x.dtype)
    if is_depthwise(weight, g.groups, g.transposed):
        own = _innermost_depthwise(g, weight, gradient, (gradient, weight), x)
        own = own if g.innermost else depthwise.image_gradient(gradient, weight, x, g.stride, g.dilation)
        before = _before_cudnn_9(g, weight, gradient, (gradient, weight), x)
        planar = windows.expression(gradient.shape[1], x.shape[1], False)
        along = Kernel(planar, units="planar", own_kernel=own, before_cudnn_9=before)
        if own is not None:  # this kernel counts its own traffic
            return (along,)
    else:
        around = conversions_to_innermost((gradient, weight), (x,), g.groups)
        along = _windows_in_all_ways(windows, gradient.shape[1], x.shape[1], around)
        along = replace(along, before_cudnn_9=_before_cudnn_9(g, weight, gradient, (gradient, weight), x))
    more = total_bytes((x,)) - math.prod((x.shape[0], x.shape[1], h, w)) * total_bytes((x,)) // element_count(x)
    if more < 0:  # padding that keeps only the middle of the windows' sums
        moved = total_bytes((gradient, weight)), total_bytes((x,))
        return (_moving(along, *moved),)
    return (along, Stream(0.0, float(more), 0)) if more else (along,)


def _moving(kernel: Kernel, read_bytes: float, written_bytes: float) -> Fused:
    """Return a kernel and its variants with memory traffic other than the expression implies."""

    def fused(one: Kernel, ways: tuple[Way, ...] = ()) -> Fused:
        return Fused(
            (one.expr,), 0.0, read_bytes, written_bytes, units=one.units, kind=one.kind, ways=ways,
            before_cudnn_9=one.before_cudnn_9,
        )  # fmt: skip

    ways = tuple(Way(fused(w.kernel), w.conversions) for w in kernel.ways if isinstance(w.kernel, Kernel))
    return fused(kernel, ways)


def _weight_gradient(g: _Geometry, gradient: TensorRecord, x: TensorRecord, weight: TensorRecord) -> Launch:
    """Return the kernel for the weight gradient: filters by windows, summed over all points of the result."""
    points = x if g.transposed else gradient
    k = points.shape[0] * math.prod(points.shape[2:])
    n = weight.shape[1] * math.prod(weight.shape[2:])
    batch, m = None if g.groups == 1 else g.groups, weight.shape[0] // g.groups
    planar = ops.matmul(m, n, k, batch, False, True, dtype=x.dtype)
    if is_depthwise(weight, g.groups, g.transposed):
        own = _innermost_depthwise(g, weight, gradient, (gradient, x), weight)
        own = own if g.innermost else depthwise.weight_gradient(gradient, x, weight, g.stride, g.dilation)
        before = _before_cudnn_9(g, weight, gradient, (gradient, x), weight)
        return replace(
            _implicit_product(planar, (gradient, x), weight, "planar"), own_kernel=own, before_cudnn_9=before
        )
    if g.groups == 1:
        others = [ops.matmul(m, n, k, None, True, False, dtype=x.dtype)]
    else:
        merges = _groups_together(weight.shape[1], m, g.groups)
        others = [_merged_weight_gradient(m * many, n * many, k, -(-g.groups // many), x.dtype) for many in merges]
    found = _product_in_all_ways(g, planar, others, (gradient, x), weight)
    return replace(found, before_cudnn_9=_before_cudnn_9(g, weight, points, (gradient, x), weight))


def _merged_weight_gradient(m: int, n: int, k: int, groups: int, dtype: str) -> TensorExpr:
    """Return the product for merged groups' weight gradients, of which only diagonal blocks are kept."""
    return ops.matmul(m, n, k, None if groups == 1 else groups, True, False, dtype=dtype)
