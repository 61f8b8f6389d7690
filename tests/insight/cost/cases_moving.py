"""Calls of operators that reduce, pool, gather, scatter, join and sort."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.insight.cost.calls import Case, Draw, aten

BOOL, I64 = torch.bool, torch.int64


def reductions(draw: Draw) -> Iterator[Case]:
    x = draw.dense(*draw.shape(3))
    for name in ("amax", "amin"):
        yield Case(name, getattr(aten, name).default, [x, [draw.random.choice((0, 1, 2))]])
    for name in ("argmax", "argmin"):
        yield Case(name, getattr(aten, name).default, [x, draw.random.choice((0, 2, None))])
    for name in ("max", "min"):
        yield Case(name, getattr(aten, name).dim, [x, draw.random.choice((0, 2))])
        yield Case(name, getattr(aten, name).default, [x])
    for name, along in (("sum", aten.sum.dim_IntList), ("mean", aten.mean.dim)):
        yield Case(name, along, [x, [0, 2]])
        yield Case(name, getattr(aten, name).default, [x])
        yield Case(name, along, [draw.dense(2000, 3), [1]])
    half = draw.dense(2000, 8, dtype=torch.float16)
    yield Case("sum", aten.sum.dim_IntList, [half, [1]], {"dtype": torch.float32})
    yield Case("sum", aten.sum.dim_IntList, [draw.dense(1, 6).expand(2000, 6), [1]])
    yield Case("prod", aten.prod.dim_int, [x, 1])
    mask = draw.dense(2000, 8, dtype=BOOL)
    yield Case("any", aten.any.dim, [mask, 1])
    yield Case("all", aten.all.default, [mask])
    yield Case("norm", aten.norm.ScalarOpt_dim, [x, 2, [1]])
    yield Case("linalg_vector_norm", aten.linalg_vector_norm.default, [x, 2, [-1]])
    yield Case("var", aten.var.correction, [x, [1]])
    yield Case("var_mean", aten.var_mean.correction, [x, [1]])
    yield Case("std", aten.std.correction, [x, [1]])
    yield Case("count_nonzero", aten.count_nonzero.dim_IntList, [x, [0]])
    # The greatest, what is left without it, its exponential in place, their sum: logarithm and sum are of the result.
    yield Case("logsumexp", aten.logsumexp.default, [x, [1]], reads=[x] * 4, writes=lambda r: [x, x, *r])
    yield Case("cumsum", aten.cumsum.default, [x, 1])
    yield Case("cumprod", aten.cumprod.default, [x, 1])


def windows(draw: Draw) -> Iterator[Case]:
    side = 2 * draw.size(4, 8)
    x1, x2, x3 = (draw.dense(2, 3, *[side] * n) for n in (1, 2, 3))
    h = side // 2
    y2, y3 = draw.dense(2, 3, h, h), draw.dense(2, 3, h, h, h)
    at2, at3 = draw.index(2, 3, h, h), draw.index(2, 3, h, h, h)
    for name, x in (("max_pool2d_with_indices", x2), ("max_pool3d_with_indices", x3), ("avg_pool2d", x2),
                    ("avg_pool3d", x3)):  # fmt: skip
        yield Case(name, getattr(aten, name).default, [x, [2] * (x.dim() - 2), [2] * (x.dim() - 2)])
    yield Case("adaptive_max_pool2d", aten.adaptive_max_pool2d.default, [x2, [h, h]])
    yield Case("_adaptive_avg_pool2d", aten._adaptive_avg_pool2d.default, [x2, [h, h]])
    yield Case("_adaptive_avg_pool3d", aten._adaptive_avg_pool3d.default, [x3, [h, h, h]])
    two, three = [2, 2], [2, 2, 2]
    # Gradients need the image's shape alone, and where the greatest were.
    yield Case(
        "max_pool2d_with_indices_backward", aten.max_pool2d_with_indices_backward.default,
        [y2, x2, two, two, [0, 0], [1, 1], False, at2], reads=[y2, at2],
    )  # fmt: skip
    yield Case(
        "max_pool3d_with_indices_backward", aten.max_pool3d_with_indices_backward.default,
        [y3, x3, three, three, [0] * 3, [1] * 3, False, at3], reads=[y3, at3],
    )  # fmt: skip
    adaptive = aten.adaptive_max_pool2d_backward.default
    yield Case("adaptive_max_pool2d_backward", adaptive, [y2, x2, at2], reads=[y2, at2])
    for name, y, x, w in (("avg_pool2d_backward", y2, x2, two), ("avg_pool3d_backward", y3, x3, three)):
        zeros = [0] * len(w)
        yield Case(name, getattr(aten, name).default, [y, x, w, w, zeros, False, True, None], reads=[y])
    for name, y, x in (("_adaptive_avg_pool2d_backward", y2, x2), ("_adaptive_avg_pool3d_backward", y3, x3)):
        yield Case(name, getattr(aten, name).default, [y, x], reads=[y])
    yield from _resized(draw, x1, x2, x3, side)
    yield Case("constant_pad_nd", aten.constant_pad_nd.default, [x2, [1, 1, 2, 2]])
    yield Case("reflection_pad2d", aten.reflection_pad2d.default, [x2, [1, 1, 2, 2]])
    yield Case("roll", aten.roll.default, [x2, [1, 1], [2, 3]])
    yield Case("flip", aten.flip.default, [x2, [2]])
    yield Case("repeat", aten.repeat.default, [x2, [2, 1, 1, 3]])
    yield Case("im2col", aten.im2col.default, [x2, [3, 3], [1, 1], [1, 1], [1, 1]])
    patches = draw.dense(2, 27, side * side)
    yield Case("col2im", aten.col2im.default, [patches, [side, side], [3, 3], [1, 1], [1, 1], [1, 1]])
    yield Case("reflection_pad1d", aten.reflection_pad1d.default, [x1, [1, 2]])
    yield Case("replication_pad2d", aten.replication_pad2d.default, [x2, [1, 1, 2, 2]])
    for name, x, pads in (("reflection_pad1d", x1, [1, 1]), ("reflection_pad2d", x2, [1] * 4),
                          ("replication_pad2d", x2, [1] * 4)):  # fmt: skip
        out = draw.dense(2, 3, *(n + 2 for n in x.shape[2:]))
        yield Case(f"{name}_backward", getattr(aten, f"{name}_backward").default, [out, x, pads], reads=[out])
    yield Case("grid_sampler_2d", aten.grid_sampler_2d.default, [x2, draw.dense(2, side, side, 2), 0, 0, False])
    maps = draw.dense(2, 12, 5, 5)
    yield Case("channel_shuffle", aten.channel_shuffle.default, [maps, 3], results=[torch.empty_like(maps)])
    yield Case("pixel_shuffle", aten.pixel_shuffle.default, [draw.dense(2, 12, 5, 5), 2])
    yield Case("pixel_unshuffle", aten.pixel_unshuffle.default, [draw.dense(2, 3, 6, 6), 2])


def _resized(draw: Draw, x1: object, x2: object, x3: object, side: int) -> Iterator[Case]:
    n = 2 * side
    for name, x, extra in (("upsample_nearest1d", x1, []), ("upsample_nearest2d", x2, []),
                           ("upsample_nearest3d", x3, []),
                           ("upsample_bilinear2d", x2, [False]), ("upsample_bicubic2d", x2, [False]),
                           ("upsample_trilinear3d", x3, [False]), ("upsample_linear1d", x1, [False])):  # fmt: skip
        rank = x.dim() - 2
        yield Case(name, getattr(aten, name).default, [x, [n] * rank, *extra])
        out = draw.dense(2, 3, *[n] * rank)
        yield Case(
            f"{name}_backward", getattr(aten, f"{name}_backward").default, [out, [n] * rank, list(x.shape), *extra]
        )


def joined(draw: Draw) -> Iterator[Case]:
    rows = draw.size(10, 30)
    parts = [draw.dense(draw.size(), 7) for _ in range(draw.size(2, 200))]
    yield Case("cat", aten.cat.default, [parts, 0])
    yield Case("stack", aten.stack.default, [[draw.dense(5, 6) for _ in range(4)], 1])
    x = draw.dense(rows, 8, 4)
    part = draw.dense(rows, 4)
    # Zeros everywhere, then the part over them.
    yield Case("select_backward", aten.select_backward.default, [part, [rows, 8, 4], 1, 3], writes=lambda r: [*r, part])
    cut = draw.dense(rows, 3, 4)
    yield Case(
        "slice_backward", aten.slice_backward.default, [cut, [rows, 8, 4], 1, 0, 3, 1], writes=lambda r: [*r, cut]
    )
    yield Case("topk", aten.topk.default, [x, 2], reads=[x] * 3)
    passes = 4  # of eight bits of a float32 key; positions of eight bytes go with it
    moved = passes * x.numel() * 12.0
    yield Case("sort", aten.sort.default, [x, -1], reads=[moved], writes=[moved])


def gathered(draw: Draw) -> Iterator[Case]:
    """A gather reads of its table what it returns, and the indices."""
    table, at = draw.dense(500, 16), draw.index(draw.size(), draw.size())
    found = [16.0 * 4 * at.numel(), at]
    yield Case("embedding", aten.embedding.default, [table, at], reads=found)
    yield Case("index", aten.index.Tensor, [table, [at]], reads=found)
    yield Case("_unsafe_index", aten._unsafe_index.Tensor, [table, [at]], reads=found)
    starts = draw.index(5)  # of five bags
    yield Case("_embedding_bag", aten._embedding_bag.default, [table, at.view(-1), starts], reads=[*found, starts])
    only = aten._embedding_bag_forward_only.default
    yield Case("_embedding_bag_forward_only", only, [table, at.view(-1), starts], reads=[*found, starts])
    rows, bag, size = draw.index(64), draw.index(64), draw.index(5)
    sums, keys = draw.dense(5, 16), 4 * 64 * 16.0
    for name, starts_too in (("_embedding_bag_dense_backward", []), ("_embedding_bag_backward", [starts])):
        tail = [500, False, 0] + ([False, None] if starts_too else [None])
        yield Case(
            name, getattr(aten, name).default, [sums, rows, *starts_too, bag, size, draw.index(0), *tail],
            reads=[keys, sums, bag, size], writes=lambda r: [*r, keys, 64 * 64.0], results=[draw.dense(500, 16)],
        )  # fmt: skip
    flat = draw.index(37)
    yield Case("index_select", aten.index_select.default, [table, 0, flat], reads=[37 * 64.0, flat])
    some = draw.index(500, 3)
    yield Case("gather", aten.gather.default, [table, 1, some], reads=[4.0 * some.numel(), some])
    yield Case("take", aten.take.default, [table, flat], reads=[4.0 * 37, flat])


def scattered(draw: Draw) -> Iterator[Case]:
    """A scatter reads indices and values; where it adds, the places too; where it is not in place, it copies first."""
    table, at, values = draw.dense(500, 16), draw.index(37), draw.dense(37, 16)
    part, copied = [at, values], lambda r: [*r, values]
    both = [table, *part]
    for name in ("index_put", "_unsafe_index_put"):
        yield Case(name, getattr(aten, name).default, [table, [at], values, False], reads=both, writes=copied)
    yield Case("index_put", aten.index_put_.default, [table, [at], values], reads=part, writes=[values])
    yield Case("_index_put_impl", aten._index_put_impl_.default, [table, [at], values], reads=part, writes=[values])
    one = draw.dense()  # one value for all places
    yield Case("index_put", aten.index_put_.default, [table, [at], one], reads=[at], writes=[values])
    yield Case("index_add", aten.index_add.default, [table, 0, at, values], reads=[*both, values], writes=copied)
    yield Case("index_add", aten.index_add_.default, [table, 0, at, values], reads=[*part, values], writes=[values])
    yield Case("index_copy", aten.index_copy.default, [table, 0, at, values], reads=both, writes=copied)
    yield Case("index_fill", aten.index_fill_.int_Scalar, [table, 0, at, 0.0], reads=[at], writes=[values])
    places, source = draw.index(500, 3), draw.dense(500, 3)
    into = lambda r: [*r, source]  # noqa: E731
    yield Case("scatter", aten.scatter.src, [table, 1, places, source], reads=[table, places, source], writes=into)
    yield Case("scatter", aten.scatter_.value, [table, 1, places, 1.0], reads=[places], writes=[source])
    add = [table, 1, places, source]
    yield Case("scatter_add", aten.scatter_add.default, add, reads=[table, places, source, source], writes=into)
    yield Case("scatter_reduce", aten.scatter_reduce.two, [*add, "amax"], reads=[table, places, source, source],
               writes=into)  # fmt: skip
    mask = draw.dense(500, 16, dtype=BOOL)
    sums = 8.0 * mask.numel()  # how many are true before each
    yield Case(
        "masked_scatter", aten.masked_scatter.default, [table, mask, draw.dense(9000)],
        reads=[table, mask, table, mask, sums, table], writes=[table, sums, table],
    )  # fmt: skip
    yield from _sorted(draw, table)


def _sorted(draw: Draw, table: object) -> Iterator[Case]:
    """Gradients of many rows sort their indices, four passes of eight bits, and add rows of the same index."""
    many = draw.size(5000, 9000)
    at, rows = draw.index(many), draw.dense(many, 16)
    keys = 4 * many * 16.0
    back = aten.embedding_dense_backward.default
    yield Case("embedding_dense_backward", back, [rows, at, 500, -1, False], reads=[keys, rows], writes=lambda r: [
        *r, *r, keys])  # fmt: skip
    few, short = draw.index(37), draw.dense(37, 16)
    # Few are added as they come.
    yield Case("embedding_dense_backward", back, [short, few, 500, -1, False], reads=[few, short, short],
               writes=lambda r: [*r, short])  # fmt: skip
    yield Case("index_put", aten.index_put_.default, [table, [at], rows, True], reads=[keys, rows, rows], writes=[
        keys, rows])  # fmt: skip


def values_read(draw: Draw) -> Iterator[Case]:
    x = draw.dense(*draw.shape(2))
    yield Case("nonzero", aten.nonzero.default, [x], reads=[x, x, 8.0])
    mask, half = draw.dense(*x.shape, dtype=BOOL), x.numel() // 2
    places = 16.0 * half  # two coordinates of each
    yield Case("masked_select", aten.masked_select.default, [x, mask], reads=[mask, mask, 8.0, places, 4.0 * half],
               writes=lambda r: [places, *r])  # fmt: skip
    numbers = draw.index(50)
    passes = 8 * 50 * 16.0  # of eight bits each; positions go with the numbers
    yield Case("_unique2", aten._unique2.default, [numbers], reads=[passes, numbers, numbers, 8.0],
               writes=lambda r: [passes, *r])  # fmt: skip
    yield Case("unique_consecutive", aten.unique_consecutive.default, [numbers], reads=[numbers, numbers, 8.0],
               results=[draw.index(20)])  # fmt: skip
    yield Case("bincount", aten.bincount.default, [draw.index(50)])
    yield Case("_local_scalar_dense", aten._local_scalar_dense.default, [draw.dense()])
    yield Case("equal", aten.equal.default, [x, draw.dense(*x.shape)])


def moving_cases(draw: Draw) -> Iterator[Case]:
    """Return all of them."""
    for family in (reductions, windows, joined, gathered, scattered, values_read):
        yield from family(draw)
