"""Calls of products, convolutions, attention, recurrent layers and norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.insight.cost.calls import Case, Draw, aten, recorded

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64


def products(draw: Draw) -> Iterator[Case]:
    m, n, k, b, dtype = draw.size(), draw.size(), draw.size(), draw.size(), draw.dtype()
    matrix = lambda *s: draw.tensor(s, dtype, draw.random.choice(("dense", "turned")))  # noqa: E731
    out = draw.dense(m, n, dtype=dtype)
    yield Case("mm", aten.mm.default, [matrix(m, k), matrix(k, n)])
    yield Case("bmm", aten.bmm.default, [matrix(b, m, k), matrix(b, k, n)])
    yield Case("addmm", aten.addmm.default, [draw.dense(n, dtype=dtype), matrix(m, k), matrix(k, n)])
    full, left, right = draw.dense(m, n, dtype=dtype), matrix(m, k), matrix(k, n)
    # Any other addend is copied to the result, which the product reads and adds to.
    yield Case(
        "addmm", aten.addmm.default, [full, left, right], reads=[full, out, left, right], writes=lambda r: [*r, *r]
    )
    yield Case("addmm", aten.addmm_.default, [out, left, right])
    yield Case("addmm", aten.addmm.default, [full, left, right], {"beta": 0}, reads=[left, right])
    many = [draw.dense(b, m, n, dtype=dtype), matrix(b, m, k), matrix(b, k, n)]
    yield Case("baddbmm", aten.baddbmm.default, many, reads=[many[0], *many], writes=lambda r: [*r, *r])
    eight = [torch.empty(16 * s, 32, device="meta", dtype=torch.float8_e4m3fn) for s in (m, n)]
    scales = [draw.dense(1), draw.dense(1)]
    yield Case("_scaled_mm", aten._scaled_mm.default, [eight[0], eight[1].t(), *scales], {"out_dtype": BF16})
    yield Case("mv", aten.mv.default, [matrix(m, k), draw.dense(k, dtype=dtype)])
    added = [draw.dense(m), draw.dense(m, k), draw.dense(k)]
    yield Case("addmv", aten.addmv.default, added, reads=[added[0], *added], writes=lambda r: [*r, *r])
    names = ("_convolution", "convolution_overrideable")
    image, weight, geometry = _convolution(draw, 2, False)
    (out,) = recorded(aten.convolution.default, image, weight, None, *geometry)[1]
    for name in names:
        more = [False, False, True, True] if name == "_convolution" else []
        yield Case(name, getattr(aten, name).default, [image, weight, None, *geometry, *more], results=[out])
    back = aten.convolution_backward_overrideable.default
    yield Case(
        "convolution_backward_overrideable", back, [out, image, weight, *geometry, [True, True, False]],
        reads=[out, weight, out, image], results=[torch.empty_like(image), torch.empty_like(weight)],
    )  # fmt: skip
    yield Case("dot", aten.dot.default, [draw.dense(k), draw.dense(k)])
    yield Case("vdot", aten.vdot.default, [draw.dense(k), draw.dense(k)])


def _convolution(draw: Draw, rank: int, transposed: bool) -> tuple[Any, Any, list[Any]]:
    groups = draw.random.choice((1, 1, 2, 4))
    inside, outside = groups * draw.size(1, 4), groups * draw.size(1, 4)
    image = draw.dense(draw.size(1, 3), inside, *(draw.size(8, 12) for _ in range(rank)))
    window = tuple(draw.random.choice((1, 2, 3)) for _ in range(rank))
    filters = (inside, outside // groups) if transposed else (outside, inside // groups)
    weight = draw.dense(*filters, *window)
    if rank == 2 and draw.random.random() < 0.5:
        image, weight = (t.to(memory_format=torch.channels_last) for t in (image, weight))
    stride = [draw.random.choice((1, 2)) for _ in range(rank)]
    dilation = [1 if transposed else draw.random.choice((1, 2)) for _ in range(rank)]
    padding = [draw.random.choice((0, 1)) if k > 1 else 0 for k in window]
    return image, weight, [stride, padding, dilation, transposed, [0] * rank, groups]


def convolutions(draw: Draw) -> Iterator[Case]:
    for rank in (1, 2, 3):
        for transposed in (False, True):
            image, weight, geometry = _convolution(draw, rank, transposed)
            yield Case("convolution", aten.convolution.default, [image, weight, None, *geometry])
            _, (out,) = recorded(aten.convolution.default, image, weight, None, *geometry)
            bias = draw.dense(out.shape[1])
            # The bias is added by a kernel of its own, which reads and writes the result.
            yield Case(
                "convolution", aten.convolution.default, [image, weight, bias, *geometry],
                reads=[image, weight, out, bias], writes=lambda r: [*r, *r],
            )  # fmt: skip
            for mask in ([True, True, True], [False, True, False], [True, False, False]):
                yield _gradients(out, image, weight, geometry, mask)
    image, weight, (stride, padding, dilation, _, _, groups) = _convolution(draw, 2, False)
    geometry = [stride, padding, dilation, False, [0, 0], groups]
    _, results = recorded(aten.convolution.default, image, weight, None, *geometry)
    yield Case(
        "cudnn_convolution", aten.cudnn_convolution.default,
        [image, weight, padding, stride, dilation, groups, False, False, True], results=results,
    )  # fmt: skip


def _gradients(out: Any, image: Any, weight: Any, geometry: list[Any], mask: list[bool]) -> Case:
    """Each gradient is a kernel: of the image from the weights, of the weights from the image, of the bias alone."""
    reads = mask[0] * [out, weight] + mask[1] * [out, image] + mask[2] * [out]
    sizes = [out.shape[1]]
    return Case(
        "convolution_backward", aten.convolution_backward.default, [out, image, weight, sizes, *geometry, mask],
        reads=reads,
    )  # fmt: skip


def attentions(draw: Draw) -> Iterator[Case]:
    batch, heads, depth = draw.size(1, 3), draw.size(1, 4), draw.random.choice((32, 64))
    rows, columns = 16 * draw.size(), 16 * draw.size()
    q, k, v = (draw.dense(batch, heads, n, depth, dtype=F16) for n in (rows, columns, columns))
    for causal in (False, True):
        keys = (k, v) if not causal else (q.clone(), q.clone())
        yield from _attention(draw, "flash", [q, *keys], [0.0, causal, False], causal)
        yield from _attention(draw, "cudnn", [q, *keys], [None, True, 0.0, causal, False], causal)
        yield from _attention(draw, "efficient", [q, *keys], [None, True, 0.0, causal], causal)
        yield from _on_processor(draw, [q.float(), *(t.float() for t in keys)], causal)
    bias = draw.dense(1, 1, rows, columns, dtype=F16).expand(batch, heads, rows, columns)
    yield from _attention(draw, "efficient", [q, k, v], [bias, True, 0.1, False], False)
    by_token = [t.transpose(1, 2) for t in (q, k, v)]
    for kind in (0, 1):
        yield Case(
            "_efficient_attention_forward", aten._efficient_attention_forward.default,
            [*by_token, None, None, None, rows, columns, 0.0, kind, True], writes=big,
        )  # fmt: skip
    yield Case(
        "_flash_attention_forward", aten._flash_attention_forward.default,
        [*by_token, None, None, rows, columns, 0.0, False, False], writes=big,
    )  # fmt: skip
    out, log, seed = torch.empty_like(by_token[0]), draw.dense(batch, heads, rows), draw.index()
    yield Case(
        "_flash_attention_backward", aten._flash_attention_backward.default,
        [out, *by_token, out, log, None, None, rows, columns, 0.0, False, seed, seed],
    )  # fmt: skip
    yield Case(
        "_efficient_attention_backward", aten._efficient_attention_backward.default,
        [out, *by_token, None, out, None, None, rows, columns, log, 0.0, seed, seed, 0, False], writes=big,
    )  # fmt: skip


def big(results: tuple[Any, ...]) -> list[Any]:
    """Return results without those that are of no size beside them."""
    return list(results)


def _attention(draw: Draw, kind: str, qkv: list[Any], rest: list[Any], causal: bool) -> Iterator[Case]:
    name = f"_scaled_dot_product_{kind}_attention"
    yield Case(name, getattr(aten, name).default, [*qkv, *rest])
    out, log, seed = torch.empty_like(qkv[0]), draw.dense(*qkv[0].shape[:-1]), draw.index()
    rows, columns = qkv[0].shape[2], qkv[1].shape[2]
    tails: dict[str, list[Any]] = {
        "flash": [*qkv, out, log, None, None, rows, columns, 0.0, causal, seed, seed],
        "cudnn": [*qkv, out, log, seed, seed, None, None, None, rows, columns, 0.0, causal],
        "efficient": [*qkv, rest[0], out, log, seed, seed, 0.0, [True, True, True, False], causal],
    }
    yield Case(f"{name}_backward", getattr(aten, f"{name}_backward").default, [out, *tails[kind]])


def _on_processor(draw: Draw, qkv: list[Any], causal: bool) -> Iterator[Case]:
    """Attention in blocks, as a processor has it."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    yield Case(name, getattr(aten, name).default, [*qkv, 0.0, causal])
    out, log = torch.empty_like(qkv[0]), draw.dense(*qkv[0].shape[:-1])
    rest = [torch.empty_like(out), *qkv, out, log, 0.0, causal]
    yield Case(f"{name}_backward", getattr(aten, f"{name}_backward").default, rest)


def cells(draw: Draw) -> Iterator[Case]:
    """Cells of one step, whose gates come from products before."""
    batch, hidden = draw.size(20, 40), draw.size(20, 40)
    gates, more = draw.dense(batch, 4 * hidden), draw.dense(batch, 4 * hidden)
    cell, bias = draw.dense(batch, hidden), draw.dense(4 * hidden)
    results = [torch.empty_like(cell), torch.empty_like(cell), torch.empty_like(gates)]
    yield Case(
        "_thnn_fused_lstm_cell", aten._thnn_fused_lstm_cell.default, [gates, more, cell, bias, bias.clone()],
        results=results,
    )  # fmt: skip
    yield Case(
        "_thnn_fused_lstm_cell_backward_impl", aten._thnn_fused_lstm_cell_backward_impl.default,
        [cell, None, cell.clone(), cell.clone(), gates, True], results=[torch.empty_like(gates), cell.clone(), bias],
    )  # fmt: skip


def norms(draw: Draw) -> Iterator[Case]:
    rows, length = draw.size(200, 300), draw.size(20, 60)
    dtype = draw.dtype()
    x = draw.dense(rows, length, dtype=dtype)
    for name in ("_softmax", "_log_softmax"):
        yield Case(name, getattr(aten, name).default, [x, draw.random.choice((0, 1, -1)), False])
        half = draw.dense(rows, length, dtype=F16)
        yield Case(name, getattr(aten, name).default, [half, -1, True])
        yield Case(f"{name}_backward_data", getattr(aten, f"{name}_backward_data").default, [x, x.clone(), -1, dtype])
    safe, marks = draw.dense(rows, length), float(rows * length)
    # The softmax; which elements are masked; which rows are, of those; zeros there.
    yield Case("_safe_softmax", aten._safe_softmax.default, [safe, -1], reads=[safe] * 3 + [marks] * 2,
               writes=lambda r: [*r, *r, marks])  # fmt: skip
    weight, bias = draw.dense(length), draw.dense(length)
    x, g, each = draw.dense(rows, length), draw.dense(rows, length), draw.dense(rows, 1)
    yield Case("native_layer_norm", aten.native_layer_norm.default, [x, [length], weight, bias, 1e-5])
    yield Case("native_layer_norm", aten.native_layer_norm.default, [x, [length], None, None, 1e-5])
    turned = draw.dense(4, length, 6).transpose(1, 2)  # rows that PyTorch copies first
    copy = draw.dense(4, 6, length)
    each_row = draw.dense(4, 6, 1)
    yield Case("native_layer_norm", aten.native_layer_norm.default, [turned, [length], weight, bias, 1e-5],
               reads=[turned, copy, weight, bias], writes=lambda r: [copy, *r])  # fmt: skip
    back = aten.native_layer_norm_backward.default
    yield Case("native_layer_norm_backward", back, [copy, turned, [length], each_row, each_row.clone(), weight, bias,
               [True, False, False]], reads=[turned, copy, copy, each_row, each_row, weight, bias],
               writes=lambda r: [copy, *r])  # fmt: skip
    given = [g, x, [length], each, each.clone(), weight, bias]
    # The image's gradient and the weights' read both tensors each.
    yield Case("native_layer_norm_backward", back, [*given, [True, True, True]], reads=[g, x, g, x, weight, each, each])
    yield Case("native_layer_norm_backward", back, [*given, [True, False, False]])
    yield Case("_fused_rms_norm", aten._fused_rms_norm.default, [x, [length], weight, 1e-5], results=[g, each])
    yield Case(
        "_fused_rms_norm_backward", aten._fused_rms_norm_backward.default, [g, x, [length], each, weight, [True, True]],
        reads=[g, x, g, x, weight, each],
    )  # fmt: skip


def channel_norms(draw: Draw) -> Iterator[Case]:
    channels = draw.size()
    x = draw.dense(3, channels, 24, 24)
    g = draw.dense(3, channels, 24, 24)
    one = lambda: draw.dense(channels)  # noqa: E731
    weight, bias, mean, variance = one(), one(), one(), one()
    kept, twice = [x, weight, bias, mean, variance], [x, x, weight, bias, mean, variance]
    image = lambda r: [r[0], *r[1:]]  # noqa: E731
    for name in ("native_batch_norm", "_native_batch_norm_legit"):
        op = getattr(aten, name).default
        yield Case(name, op, [*kept, True, 0.1, 1e-5], reads=twice, writes=image)
        yield Case(name, op, [*kept, False, 0.1, 1e-5], reads=kept, writes=image)
    no_stats = aten._native_batch_norm_legit.no_stats
    yield Case("_native_batch_norm_legit", no_stats, [x, weight, bias, True, 0.1, 1e-5], reads=twice, writes=image)
    functional = aten._native_batch_norm_legit_functional.default
    yield Case("_native_batch_norm_legit_functional", functional, [*kept, True, 0.1, 1e-5], reads=twice)
    yield Case(
        "_native_batch_norm_legit_no_training", aten._native_batch_norm_legit_no_training.default, [*kept, 0.1, 1e-5]
    )
    yield Case("_batch_norm_with_update", aten._batch_norm_with_update.default, [*kept, 0.1, 1e-5], reads=twice)
    yield Case("_batch_norm_no_update", aten._batch_norm_no_update.default, [*kept, 0.1, 1e-5])
    yield Case("cudnn_batch_norm", aten.cudnn_batch_norm.default, [*kept, True, 0.1, 1e-5], reads=twice)
    mask = [True, True, True]
    again = [g, x, g, x]
    yield Case(
        "native_batch_norm_backward", aten.native_batch_norm_backward.default,
        [g, x, weight, mean, variance, mean, variance, True, 1e-5, mask], reads=again,
    )  # fmt: skip
    reserve = draw.dense(0, dtype=torch.uint8)
    yield Case(
        "cudnn_batch_norm_backward", aten.cudnn_batch_norm_backward.default,
        [x, g, weight, mean, variance, mean, variance, 1e-5, reserve], reads=again,
    )  # fmt: skip
    yield Case(
        "batch_norm_backward", aten.batch_norm_backward.default,
        [g, x, weight, mean, variance, mean, variance, True, 1e-5, mask, reserve], reads=again,
    )  # fmt: skip
    sizes = [3, channels, 24 * 24, channels]
    each = draw.dense(3, channels)
    yield Case("native_group_norm", aten.native_group_norm.default, [x, weight, bias, *sizes, 1e-5], reads=[x, x])
    yield Case(
        "native_group_norm_backward", aten.native_group_norm_backward.default,
        [g, x, each, each, weight, *sizes, mask], reads=again,
    )  # fmt: skip


def product_cases(draw: Draw) -> Iterator[Case]:
    """Return all of them."""
    for family in (products, convolutions, attentions, cells, norms, channel_norms):
        yield from family(draw)
