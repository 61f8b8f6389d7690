"""The smallest padding of a kernel's sizes that makes the kernel faster according to predicted times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from roller.expr import TensorExpr
from roller.expr.sizes_growable_by_padding import GrowableSize, enlarge_size
from roller.insight.cost.kernel_prices import KernelPricer

#: Multiples to which sizes are padded, those that are tried first, and the largest relative growth of a size.
MULTIPLES, FIRST, MOST_GROWTH = (2, 4, 8, 16, 32, 64, 128), (8, 32, 128), 1 / 3
#: Smallest share of the total time at which a kernel is examined, and smallest speedup at which padding is advised.
LEAST_SHARE, LEAST_GAIN = 0.02, 1.05
#: Share of the saved time that a smaller padding must keep to be preferred.
_KEPT = 0.9


def allowed_padded_extents(extent: int) -> list[int]:
    """Return the sizes to which an extent may be padded, smallest first, at most :data:`MOST_GROWTH` larger."""
    found = {-(-extent // m) * m for m in MULTIPLES} - {extent}
    return sorted(e for e in found if e <= extent * (1 + MOST_GROWTH))


def enlarge_sizes(expr: TensorExpr, extents: Mapping[GrowableSize, int]) -> TensorExpr:
    """Return ``expr`` with the given sizes enlarged to their new extents."""
    for size, extent in extents.items():
        expr = enlarge_size(expr, size, extent)
    return expr


def smallest_worthwhile_padding(
    expr: TensorExpr, sizes: Sequence[GrowableSize], prices: KernelPricer, least_gain: float = LEAST_GAIN
) -> dict[GrowableSize, int]:
    """Return the smallest padding of a kernel that keeps most of the largest gain; empty if it gains too little."""
    # All sizes are padded together first, since a matrix fragment needs all of its side lengths. Then each padding is
    # reduced as long as most of the gain remains.

    def padded_seconds(extents: Mapping[GrowableSize, int]) -> float:
        return prices.price_expression(enlarge_sizes(expr, extents)).seconds

    now, best = padded_seconds({}), min(paddings_to_common_multiples(sizes), key=padded_seconds, default={})
    if now < least_gain * padded_seconds(best):
        return {}
    enough = now - _KEPT * (now - padded_seconds(best))
    for size in sorted(best, key=lambda s: -best[s] / s.extent):
        without = {s: e for s, e in best.items() if s != size}
        nearer = [{**without, size: e} for e in allowed_padded_extents(size.extent) if e < best[size]]
        best = next((c for c in [without, *nearer] if padded_seconds(c) <= enough), best)
    return best if now >= least_gain * padded_seconds(best) else {}


def paddings_to_common_multiples(sizes: Sequence[GrowableSize]) -> Iterator[dict[GrowableSize, int]]:
    """Yield paddings of all sizes to the same multiple, without duplicates."""
    seen = set[tuple[int, ...]]()
    for multiple in FIRST:
        extents = {s: _largest_allowed_padding(s.extent, multiple) for s in sizes}
        chosen = {s: e for s, e in extents.items() if e != s.extent}
        if chosen and tuple(extents.values()) not in seen:
            seen.add(tuple(extents.values()))
            yield chosen


def _largest_allowed_padding(extent: int, multiple: int) -> int:
    """Return the largest allowed padding of an extent up to a multiple; the extent itself if none is allowed."""
    allowed = [e for e in allowed_padded_extents(extent) if e <= -(-extent // multiple) * multiple]
    return max(allowed, default=extent)
