"""Fits the output lengths of strided, padded or scaled axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from roller_runtime.core.size_formulas import Atom, Formula


def fit_floor_quotients(
    points: Sequence[Mapping[str, int]], values: Sequence[int], most: int = 8
) -> Iterator[tuple[Formula, Formula]]:
    """Yield fits ``floor((factor * size + shift) / divisor)``, as pairs for the smallest and the largest shift.

    >>> points = [{"h": n} for n in (7, 8, 10, 13)]
    >>> [(f.at({"h": 15}), f == other) for f, other in fit_floor_quotients(points, [4, 4, 5, 7])]
    [(8, True)]
    """
    # The pair is equal where only one shift fits; otherwise a size at which the two differ tells them apart.
    for divisor in range(1, most + 1):
        for factor in range(1, most + 1 if divisor == 1 else 2):
            for name in points[0]:
                lows = [v * divisor - factor * p[name] for p, v in zip(points, values, strict=True)]
                least, largest = max(lows), min(lows) + divisor - 1
                if least > largest:
                    continue
                if divisor == 1:
                    whole = Formula(least, ((factor, (Atom((name,)),)),))
                    yield whole, whole
                    continue
                atoms = (Atom((name,), "floor", divisor, shift=s) for s in (least, largest))
                first, last = (Formula(0, ((1, (a,)),)) for a in atoms)
                yield first, last
