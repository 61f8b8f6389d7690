"""The sizes that calls of a model choose: names, least and largest values, and values to look at."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from roller.core.formulas import Formula

#: Values of a size that programs are constructed for, where it spans many, and where it spans few.
_WIDE, _NARROW = 6, 2
#: Values of a size that is the only one, and of one among three or more.
_ALONE, _THIRD = 9, 3
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
    derived
        Sizes that follow from these, and from each other in their order: lengths behind a stride, with padding.
    """

    ends: Mapping[str, tuple[int, int]]
    derived: Mapping[str, Formula] = field(default_factory=dict)

    def whole(self, sizes: Sizes) -> dict[str, int]:
        """Return sizes with all that follow from them.

        Examples
        --------
        >>> from roller.core.formulas import Atom
        >>> Box({"h": (1, 9)}, {"half": Formula(0, ((1, (Atom(("h",), "ceil", 2),)),))}).whole({"h": 5})
        {'h': 5, 'half': 3}
        """
        found = {n: sizes[n] for n in self.ends}
        for name, formula in self.derived.items():
            found[name] = formula.at(found)
        return found

    @property
    def high(self) -> dict[str, int]:
        """The largest of every size."""
        return self.whole({n: high for n, (_, high) in self.ends.items()})

    @property
    def low(self) -> dict[str, int]:
        """The least of every size."""
        return self.whole({n: low for n, (low, _) in self.ends.items()})

    def nominal(self) -> list[dict[str, int]]:
        """Return sizes that programs are constructed for: few of each, odd ones, none of 1 where others are meant."""
        return self._crossed([self._spread(e) for e in self.ends.values()])

    def _crossed(self, several: Sequence[Sequence[int]]) -> list[dict[str, int]]:
        return [self.whole(dict(zip(self.ends, c, strict=True))) for c in itertools.product(*several)]

    def _spread(self, ends: tuple[int, int]) -> list[int]:
        low, high = max(2, ends[0]), ends[1]
        many = _ALONE if len(self.ends) == 1 else _WIDE if len(self.ends) == 2 else _THIRD
        count = many if high >= _SPAN * low else _NARROW
        found = {int(x) for x in np.geomspace(low, high, count).round()}
        return sorted({min(high, x | 1) if x > low else min(high, low + 1) for x in found})

    def grid(self) -> list[dict[str, int]]:
        """Return sizes at which kernels are compared: those of :meth:`nominal` and the ends."""
        axes = [sorted({*self._spread(e), *e, *self._dense(e)}) for e in self.ends.values()]
        return self._crossed(axes)

    def _dense(self, ends: tuple[int, int]) -> list[int]:
        """Return more values of a size that is alone: all small ones, where one more is half a kernel's work."""
        if len(self.ends) > 1:
            return []
        found = [x for x in (*range(1, 17), 24, 40, 80, 200, 400, 1000, 2500) if ends[0] <= x <= ends[1]]
        return [*found, ends[1]]

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
            yield self.whole({n: min(b, int(a * (max(a, b + 1) / a) ** draw.random())) for n, (a, b) in ends.items()})
