"""Convolutions of one to three dimensions and their gradients, in the variants that a library may run."""

# Matrix-unit kernels take images with channels innermost. If images are channels-first, or if their channels do not
# form whole vectors, cuDNN converts operands before such a kernel and results after it (convolution guide of NVIDIA's
# deep learning performance documentation, "Tensor Layouts In Memory"). SIMT kernels take tensors unchanged and may use
# Winograd's algorithm for windows of three by three at stride one. The library runs the fastest kernel.

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from roller import ops
from roller.expr import TensorExpr
from roller.insight.cost.gpu import depthwise
from roller.insight.cost.gpu.elementwise_launches import elementwise_launches
from roller.insight.cost.gpu.operator_view import OperatorView, element_count, total_bytes
from roller.insight.cost.kernel_launch_types import (
    FusedKernel,
    InstructionKernel,
    Kernel,
    KernelVariant,
    Launch,
    MemoryKernel,
    Units,
)
from roller.insight.trace.convolution_layout import (
    channel_count_padded_to_vectors,
    is_channels_last,
    is_depthwise,
    is_planar_matrix_product,
    needs_layout_conversion,
    padded_channel_count,
    suggests_channels_last,
)
from roller.insight.trace.trace import TensorRecord


@dataclass(frozen=True)
class _ConvolutionGeometry:
    """Windows and groups of a convolution, and whether the channels of its tensors are innermost."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool
    innermost: bool


def convolution_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for a convolution, including conversions before it and the addition of its bias."""
    x, weight = view.tensor("self") or view.required_tensor("input", 0), view.required_tensor("weight", 1)
    copies = _depthwise_image_copy_kernels(_convolution_geometry(view, x, weight), weight, (x,))
    kernels, bias = (*copies, _convolution_kernel(view, x, weight, view.out)), view.tensor("bias")
    return kernels if bias is None else (*kernels, *_bias_launches(view.out, bias))


def _depthwise_image_copy_kernels(
    g: _ConvolutionGeometry, weight: TensorRecord, images: Sequence[TensorRecord]
) -> tuple[MemoryKernel, ...]:
    """Return the kernels with which PyTorch converts images before a depthwise convolution with channels innermost."""
    return (
        channels_last_conversion_kernels(images, (), g.groups)
        if g.innermost and is_depthwise(weight, g.groups, g.transposed)
        else ()
    )


def channels_last_conversion_kernels(
    read: Sequence[TensorRecord], written: Sequence[TensorRecord], groups: int
) -> tuple[MemoryKernel, ...]:
    """Return the kernels that convert read tensors to channels-innermost whole vectors, and written tensors back."""
    # The channels of grouped convolutions are not padded to whole vectors.
    found = []
    for tensor, is_read in (*((t, True) for t in read), *((t, False) for t in written)):
        if not needs_layout_conversion(tensor, groups):
            continue
        own = float(total_bytes((tensor,)))
        other = own * padded_channel_count(tensor, groups) / tensor.shape[1]
        found.append(MemoryKernel(own, other) if is_read else MemoryKernel(other, own))
    return tuple(found)


def _bias_launches(out: TensorRecord, bias: TensorRecord) -> tuple[Launch, ...]:
    if len(out.shape) < 3:  # no batch and no points
        return (MemoryKernel(total_bytes((out, bias)), total_bytes((out,))),)
    along = TensorRecord((out.shape[1], *(1,) * (len(out.shape) - 2)), (1,) * (len(out.shape) - 1), bias.dtype, -1)
    return elementwise_launches(("add",), out, (out, along))


def convolution_backward_launches(view: OperatorView) -> tuple[Launch, ...]:
    """Return the kernels for the gradients of input, weight and bias, as far as ``output_mask`` requests them."""
    gradient, x = view.required_tensor("grad_output", 0), view.required_tensor("input", 1)
    weight = view.required_tensor("weight", 2)
    wanted: Sequence[bool] = view.argument("output_mask", (True, True, False))
    geometry = _convolution_geometry(view, x, weight)
    found: list[Launch] = [*_depthwise_image_copy_kernels(geometry, weight, (gradient, x))]
    if wanted[0]:
        found += _image_gradient_launches(geometry, gradient, x, weight)
    if wanted[1]:
        found.append(_weight_gradient_kernel(geometry, gradient, x, weight))
    if wanted[2]:
        found.append(MemoryKernel(total_bytes((gradient,)), total_bytes(view.outputs[-1:])))
    return tuple(found)


def _implicit_gemm_kernel(
    product: TensorExpr,
    read: Sequence[TensorRecord],
    written: TensorRecord,
    units: Units,
    ways: tuple[KernelVariant, ...] = (),
) -> Kernel | FusedKernel:
    """Return the kernel for an implicit GEMM, which gathers one operand from windows of an image."""
    # The product's operands contain an element once per window, but each tensor is read from memory only once. If every
    # window is a point, the operands are the tensors themselves.
    moved = total_bytes(read), total_bytes((written,))
    named = (sum(t.nbytes for t in product.inputs), sum(t.nbytes for t in product.output_tensors))
    if moved == named:
        return Kernel(product, units=units, kind="convolution", ways=ways)
    return FusedKernel((product,), 0.0, *moved, units=units, kind="convolution", ways=ways)


def _one_value_per_dimension(values: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return one value per dimension; a single value applies to all."""
    listed = tuple(values)
    return listed * rank if len(listed) == 1 and rank > 1 else listed


def _convolution_geometry(view: OperatorView, x: TensorRecord, weight: TensorRecord) -> _ConvolutionGeometry:
    rank = len(x.shape) - 2
    ones = (1,) * rank
    stride, padding = view.argument("stride", ones), view.argument("padding", (0,) * rank)
    return _ConvolutionGeometry(
        _one_value_per_dimension(stride, rank),
        _one_value_per_dimension(padding, rank),
        _one_value_per_dimension(view.argument("dilation", ones), rank),
        int(view.argument("groups", 1)),
        bool(view.argument("transposed", False)),
        (is_channels_last(x) and x.shape[1] > 1) or suggests_channels_last(weight),
    )


def _outer_and_innermost_size(sizes: Sequence[int]) -> tuple[int, int]:
    """Return two sizes: the product of all outer dimensions, and the innermost dimension."""
    return (1, sizes[0]) if len(sizes) == 1 else (math.prod(sizes[:-1]), sizes[-1])


def _convolution_kernel(view: OperatorView, x: TensorRecord, weight: TensorRecord, out: TensorRecord) -> Launch:
    rank, g = len(x.shape) - 2, _convolution_geometry(view, x, weight)
    if g.transposed or rank > 2:
        product = _equivalent_matrix_product(x if g.transposed else out, weight, out, g.groups)
        return _product_kernel_with_variants(g, product, (product,), (x, weight), out)
    windows = _Conv2d(
        x.shape[0], _outer_and_innermost_size(x.shape[2:]), _outer_and_innermost_size(weight.shape[2:]),
        _pair_of_window_values(g.stride, 1), _pair_of_window_values(g.padding, 0), _pair_of_window_values(g.dilation,
            1), g.groups, x.dtype,
    )  # fmt: skip
    if is_depthwise(weight, g.groups, g.transposed):
        own = _channels_last_depthwise_kernel(g, weight, out, (x, weight), out)
        own = own if g.innermost else depthwise.depthwise_forward_kernel(x, weight, out, g.stride, g.dilation)
        before = _direct_kernel_before_cudnn_9(g, weight, out, (x, weight), out)
        planar = windows.expression(x.shape[1], weight.shape[0], False)
        return Kernel(planar, units="planar", own_kernel=own, before_cudnn_9=before)
    around = channels_last_conversion_kernels((x, weight), (out,), g.groups)
    planes = is_planar_matrix_product(weight, g.stride, g.padding, g.groups)
    found = _conv2d_kernel_with_variants(windows, x.shape[1], weight.shape[0], around, planes)
    return replace(found, before_cudnn_9=_direct_kernel_before_cudnn_9(g, weight, out, (x, weight), out))


#: Numbers of channels per group for which cuDNN 8 had matrix-unit kernels with channels innermost, assumed to be those
#: of ResNeXt. For 64 channels, profiles show direct kernels instead (pytorch/pytorch#34977), which are assumed for all
#: other numbers, too.
_GROUPS_OF_CUDNN_8 = (4, 8, 16, 32)


def _direct_kernel_before_cudnn_9(
    g: _ConvolutionGeometry,
    weight: TensorRecord,
    points: TensorRecord,
    read: Sequence[TensorRecord],
    written: TensorRecord,
) -> InstructionKernel | None:
    """Return cuDNN 8's direct kernel for groups with channels innermost; ``None`` if it ran a different kernel."""
    # A window is multiplied at each point of ``points``.
    alike = weight.shape[0] // g.groups == weight.shape[1] and weight.shape[1] in _GROUPS_OF_CUDNN_8
    if g.groups == 1 or not g.innermost or alike or weight.dtype not in ("float16", "bfloat16"):
        return None
    return depthwise.cudnn_grouped_direct_kernel(
        points.shape[0] * math.prod(points.shape[2:]) * element_count(weight), read, written
    )


def _channels_last_depthwise_kernel(
    g: _ConvolutionGeometry,
    weight: TensorRecord,
    points: TensorRecord,
    read: Sequence[TensorRecord],
    written: TensorRecord,
) -> FusedKernel | InstructionKernel | None:
    """Return the substitute if cuDNN has no channels-innermost depthwise kernel for these windows, else ``None``."""
    if not g.innermost or {*weight.shape[2:]} <= {*depthwise.INNERMOST_WINDOWS}:
        return None
    if weight.dtype in ("float16", "bfloat16"):
        return depthwise.padded_groups_kernel(points, weight, read, written)
    return depthwise.cudnn_grouped_direct_kernel(math.prod(points.shape) * math.prod(weight.shape[2:]), read, written)


@dataclass(frozen=True)
class _Conv2d:
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
        """Whether cuDNN has Winograd kernels for it: float32, ungrouped, 3x3 windows, stride and dilation 1."""
        steps = {*self.stride, *self.dilation, self.groups}
        return self.dtype == "float32" and self.window == (3, 3) and steps == {1}


def _conv2d_kernel_with_variants(
    windows: _Conv2d, channels: int, filters: int, around: tuple[MemoryKernel, ...], planes: bool = False
) -> Kernel:
    """Return a convolution's kernel on unconverted tensors, with variants for other layouts and algorithms."""
    # All layouts of grouped convolutions cost the same, since a group's channels are not an axis of the product on the
    # units. With ``planes``, the convolution of channels-first tensors is itself a matrix product: the filters by an
    # image.
    groups = windows.groups
    if groups == 1 and not around:
        return Kernel(windows.expression(channels, filters, True), kind="convolution")
    planar, ways = windows.expression(channels, filters, False), list[KernelVariant]()
    if groups == 1:
        padded = (
            channel_count_padded_to_vectors(channels, windows.dtype),
            channel_count_padded_to_vectors(filters, windows.dtype),
        )
        ways.append(KernelVariant(Kernel(windows.expression(*padded, True), kind="convolution"), around))
        if planes:
            ways.append(KernelVariant(Kernel(planar, units="matrix", kind="convolution")))
    else:
        for together in _merged_group_counts(channels // groups, filters // groups, groups):
            blocks = -(-groups // together)
            own, others = (blocks * together * (side // groups) for side in (channels, filters))
            merged = replace(windows, groups=blocks).expression(own, others, blocks == 1)
            ways.append(KernelVariant(Kernel(merged, units="matrix", kind="convolution"), around))
    if windows.may_use_winograd:
        ways.append(KernelVariant(Kernel(planar, units="winograd")))
    return Kernel(planar, units="planar" if around else "any", kind="convolution", ways=tuple(ways))


#: Numbers of channels to which small groups are merged, so that they fill a matrix unit's fragment.
_MERGED_CHANNELS = (16, 32)


def _merged_group_counts(channels: int, filters: int, groups: int) -> list[int]:
    """Return the numbers of groups that a matrix-unit kernel may merge into one, which is padded with zeros."""
    # If such a number does not divide the number of groups, the last merged group is padded with groups of zeros.
    own = max(channels, filters)
    merged = (min(groups, side // own) for side in _MERGED_CHANNELS if side > own)
    return list(dict.fromkeys((1, *(n for n in merged if n > 1))))


def _product_kernel_with_variants(
    g: _ConvolutionGeometry,
    own: TensorExpr,
    others: Sequence[TensorExpr],
    read: Sequence[TensorRecord],
    written: TensorRecord,
) -> Kernel | FusedKernel:
    """Return the kernel for a product whose operands are images, with variants for a different layout."""
    # ``own`` is the product on unconverted tensors, and ``others`` are the products of matrix-unit kernels.
    around = channels_last_conversion_kernels(read, (written,), g.groups)
    if not around and len(others) == 1:
        return _implicit_gemm_kernel(others[0], read, written, "any")
    ways = tuple(KernelVariant(_implicit_gemm_kernel(other, read, written, "matrix"), around) for other in others)
    return _implicit_gemm_kernel(own, read, written, "planar" if around else "any", ways)


def _pair_of_window_values(values: Sequence[int], one: int) -> tuple[int, int]:
    """Return the values for a two-dimensional window; a one-dimensional window gets ``one`` as its first value."""
    return (values[0], values[1]) if len(values) == 2 else (one, values[0])


def _equivalent_matrix_product(
    points: TensorRecord, weight: TensorRecord, out: TensorRecord, groups: int
) -> TensorExpr:
    """Return a matrix product with as many multiplications as a convolution: result points by filters."""
    # The whole window is multiplied at each of ``points``: the result's points or, for a transposed convolution, the
    # input's points.
    m = points.shape[0] * math.prod(points.shape[2:])
    window = math.prod(weight.shape[2:])
    per_group = weight.shape[0] // groups
    return ops.matmul(
        m, per_group, weight.shape[1] * window, None if groups == 1 else groups, dtype=out.dtype
    )  # fmt: skip


def _image_gradient_launches(
    g: _ConvolutionGeometry, gradient: TensorRecord, x: TensorRecord, weight: TensorRecord
) -> tuple[Launch, ...]:
    """Return the kernels for the input gradient: each gradient element is spread over a window; overlaps are summed."""
    # At stride 1 this is a convolution of the gradient; at a larger stride, it has as many multiplications as the
    # forward convolution but writes the larger image.
    if len(x.shape) > 4 or g.transposed:
        product = _equivalent_matrix_product(x if g.transposed else gradient, weight, x, g.groups)
        return (_product_kernel_with_variants(g, product, (product,), (gradient, weight), x),)
    (h, w), (kh, kw) = _outer_and_innermost_size(gradient.shape[2:]), _outer_and_innermost_size(weight.shape[2:])
    dilation = _pair_of_window_values(g.dilation, 1)
    reach = tuple((k - 1) * d for k, d in zip((kh, kw), dilation, strict=True))
    pads = tuple(side for r in reach for side in (r // 2, r - r // 2))  # before and after, per dimension
    windows = _Conv2d(x.shape[0], (h, w), (kh, kw), (1, 1), pads, dilation, g.groups, x.dtype)
    if is_depthwise(weight, g.groups, g.transposed):
        own = _channels_last_depthwise_kernel(g, weight, gradient, (gradient, weight), x)
        own = (
            own if g.innermost else depthwise.depthwise_image_gradient_kernel(gradient, weight, x, g.stride, g.dilation)
        )
        before = _direct_kernel_before_cudnn_9(g, weight, gradient, (gradient, weight), x)
        planar = windows.expression(gradient.shape[1], x.shape[1], False)
        along = Kernel(planar, units="planar", own_kernel=own, before_cudnn_9=before)
        if own is not None:  # this kernel counts its own traffic
            return (along,)
    else:
        around = channels_last_conversion_kernels((gradient, weight), (x,), g.groups)
        along = _conv2d_kernel_with_variants(windows, gradient.shape[1], x.shape[1], around)
        along = replace(along, before_cudnn_9=_direct_kernel_before_cudnn_9(g, weight, gradient, (gradient, weight), x))
    more = total_bytes((x,)) - math.prod((x.shape[0], x.shape[1], h, w)) * total_bytes((x,)) // element_count(x)
    if more < 0:  # padding that keeps only the middle of the windows' sums
        moved = total_bytes((gradient, weight)), total_bytes((x,))
        return (_kernel_with_traffic(along, *moved),)
    return (along, MemoryKernel(0.0, float(more), 0)) if more else (along,)


def _kernel_with_traffic(kernel: Kernel, read_bytes: float, written_bytes: float) -> FusedKernel:
    """Return a kernel and its variants with the given memory traffic in place of the expression's."""

    def to_fused_kernel(one: Kernel, ways: tuple[KernelVariant, ...] = ()) -> FusedKernel:
        return FusedKernel(
            (one.expr,), 0.0, read_bytes, written_bytes, units=one.units, kind=one.kind, ways=ways,
            before_cudnn_9=one.before_cudnn_9,
        )  # fmt: skip

    ways = tuple(
        KernelVariant(to_fused_kernel(w.kernel), w.conversions) for w in kernel.ways if isinstance(w.kernel, Kernel)
    )
    return to_fused_kernel(kernel, ways)


def _weight_gradient_kernel(
    g: _ConvolutionGeometry, gradient: TensorRecord, x: TensorRecord, weight: TensorRecord
) -> Launch:
    """Return the kernel for the weight gradient: filters by windows, summed over all points of the result."""
    points = x if g.transposed else gradient
    k = points.shape[0] * math.prod(points.shape[2:])
    n = weight.shape[1] * math.prod(weight.shape[2:])
    batch, m = None if g.groups == 1 else g.groups, weight.shape[0] // g.groups
    planar = ops.matmul(m, n, k, batch, False, True, dtype=x.dtype)
    if is_depthwise(weight, g.groups, g.transposed):
        own = _channels_last_depthwise_kernel(g, weight, gradient, (gradient, x), weight)
        own = (
            own
            if g.innermost
            else depthwise.depthwise_weight_gradient_kernel(gradient, x, weight, g.stride, g.dilation)
        )
        before = _direct_kernel_before_cudnn_9(g, weight, gradient, (gradient, x), weight)
        return replace(
            _implicit_gemm_kernel(planar, (gradient, x), weight, "planar"), own_kernel=own, before_cudnn_9=before
        )
    if g.groups == 1:
        others = [ops.matmul(m, n, k, None, True, False, dtype=x.dtype)]
    else:
        merges = _merged_group_counts(weight.shape[1], m, g.groups)
        others = [
            _merged_weight_gradient_expression(m * many, n * many, k, -(-g.groups // many), x.dtype) for many in merges
        ]
    found = _product_kernel_with_variants(g, planar, others, (gradient, x), weight)
    return replace(found, before_cudnn_9=_direct_kernel_before_cudnn_9(g, weight, points, (gradient, x), weight))


def _merged_weight_gradient_expression(m: int, n: int, k: int, groups: int, dtype: str) -> TensorExpr:
    """Return the product for the weight gradients of merged groups; only its diagonal blocks are kept."""
    return ops.matmul(m, n, k, None if groups == 1 else groups, True, False, dtype=dtype)
