"""Properties of memory accesses that determine masking; pure arithmetic without TVM."""

from __future__ import annotations

from collections.abc import Mapping

from roller.expr import Call, Cast, Load, Scalar, Stage, loads


def factors_of_product(body: Scalar) -> list[Scalar]:
    """Return the factors of a product, without conversions."""
    if isinstance(body, Cast):
        return factors_of_product(body.arg)
    if isinstance(body, Call) and body.fn == "mul":
        return [f for a in body.args for f in factors_of_product(a)]
    return [body]


def depends_on_axis(load: Load, axis: str) -> bool:
    """Return whether a load's address or guard depends on ``axis``."""
    return any(axis in i.axes for i in load.index) or any(axis in b.index.axes for b in load.guard)


def padding_is_neutral(stage: Stage, axis: str, padded: Mapping[Load, float], neutral: float) -> bool:
    """Return whether padding of a reduction axis adds nothing even if the body is not masked."""
    # A product vanishes only if *every* factor that depends on the axis is zero there: one zero alone would turn an
    # infinity in the other operand into a NaN.
    parts = factors_of_product(stage.body)
    moving = [p for p in parts if any(depends_on_axis(ld, axis) for ld in loads(p))]
    if not moving or not all(isinstance(p, Load) and p in padded for p in moving):
        return False
    values = [padded[p] for p in moving if isinstance(p, Load)]
    if len(parts) == 1:
        return values[0] == neutral
    return stage.combiner == "sum" and all(v == 0.0 for v in values)
