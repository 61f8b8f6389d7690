"""The sizes that calls of a model choose: names, least and largest values, and values to look at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

#: Values of a size that programs are constructed for, where it spans many, and where it spans few.
_WIDE, _NARROW = 6, 2
#: A size that grows by this factor spans many values.
_SPAN = 32

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Box:
    """Sizes that vary.

    Parameters
    ----------
    ends
        Least and largest value by name, in order; least below largest.
    """

    ends: Mapping[str, tuple[int, int]]

    @property
    def high(self) -> dict[str, int]:
        """The largest of every size."""
        return {n: high for n, (_, high) in self.ends.items()}

    @property
    def low(self) -> dict[str, int]:
        """The least of every size."""
        return {n: low for n, (low, _) in self.ends.items()}

    def nominal(self) -> list[dict[str, int]]:
        """Return sizes that programs are constructed for: few of each, odd ones, none of 1 where others are meant."""
        return [dict(zip(self.ends, c, strict=True)) for c in itertools.product(*map(self._spread, self.ends.values()))]

    @staticmethod
    def _spread(ends: tuple[int, int]) -> list[int]:
        low, high = max(2, ends[0]), ends[1]
        count = _WIDE if high >= _SPAN * low else _NARROW
        found = {int(x) for x in np.geomspace(low, high, count).round()}
        return sorted({min(high, x | 1) if x > low else min(high, low + 1) for x in found})

    def grid(self) -> list[dict[str, int]]:
        """Return sizes at which kernels are compared: those of :meth:`nominal` and the ends."""
        axes = [sorted({*self._spread(e), *e}) for e in self.ends.values()]
        return [dict(zip(self.ends, c, strict=True)) for c in itertools.product(*axes)]

    def points(self, seed: int, low: Sizes | None = None, high: Sizes | None = None) -> Iterator[dict[str, int]]:
        """Yield sizes of the box at random, small ones as often as large ones, none below 2 where others are.

        Parameters
        ----------
        seed
            Of the sequence.
        low, high
            A smaller box within this one.
        """
        draw = random.Random(seed)
        ends = {
            n: (max(2, a, (low or {}).get(n, a)), max(2, min(b, (high or {}).get(n, b))))
            for n, (a, b) in self.ends.items()
        }
        while True:
            yield {n: min(b, int(a * (max(a, b + 1) / a) ** draw.random())) for n, (a, b) in ends.items()}
