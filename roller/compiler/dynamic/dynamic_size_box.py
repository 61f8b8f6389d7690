"""The box of dynamic sizes: their names, bounds, derived sizes, and sample points."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from roller_runtime.core.size_formulas import Formula

#: Number of sample sizes per axis if there is one axis, if there are two, and if there are more.
_PLACES = (12, 3, 2)
#: Number of samples in which all sizes grow together, and the power of the sample's index with which the logarithms of
#: their ratios to the smallest sizes grow, since small sizes differ by whole elements.
_ALIKE, _CLOSER = 10, 1.5

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class SizeBox:
    """Bounds of dynamic sizes."""

    ends: Mapping[str, tuple[int, int]]  #: Bounds by name, in order; the smallest value is below the largest
    #: Sizes computed from those in ``ends`` and from earlier derived ones: lengths after strides and padding.
    derived: Mapping[str, Formula] = field(default_factory=dict)

    def with_derived_sizes(self, sizes: Sizes) -> dict[str, int]:
        """Return the sizes together with all derived sizes.

        >>> from roller_runtime.core.size_formulas import Atom
        >>> SizeBox({"h": (1, 9)}, {"half": Formula(0, ((1, (Atom(("h",), "ceil",
        ...     2),)),))}).with_derived_sizes({"h": 5})
        {'h': 5, 'half': 3}
        """
        found = {n: sizes[n] for n in self.ends}
        for name, formula in self.derived.items():
            found[name] = formula.at(found)
        return found

    @property
    def high(self) -> dict[str, int]:
        """The largest value of each size."""
        return self.with_derived_sizes({n: high for n, (_, high) in self.ends.items()})

    @property
    def low(self) -> dict[str, int]:
        """The smallest value of each size."""
        return self.with_derived_sizes({n: low for n, (low, _) in self.ends.items()})

    @property
    def box_for_reading_models(self) -> SizeBox:
        """The box for reading models, which must contain distinct sizes above 1.

        >>> SizeBox({"batch": (1, 2), "rows": (1, 5)}).box_for_reading_models.ends
        {'batch': (1, 3), 'rows': (1, 5)}
        """
        least = max(3, len(self.ends) + 1)
        return SizeBox({n: (low, max(least, high)) for n, (low, high) in self.ends.items()}, self.derived)

    @property
    def middle(self) -> dict[str, int]:
        """The geometric mean of each size's bounds, above 1 where possible."""
        return self.with_derived_sizes({n: max(min(2, b), round(math.sqrt(a * b))) for n, (a, b) in self.ends.items()})

    def raise_ones_to_two(self, sizes: Sizes) -> dict[str, int]:
        """Return the sizes with each 1 raised to 2 where possible, because axes of one element vanish."""
        return self.with_derived_sizes({n: max(sizes[n], min(2, high)) for n, (_, high) in self.ends.items()})

    def sample_sizes(self, places: tuple[int, ...] = _PLACES) -> list[dict[str, int]]:
        """Return sample sizes at which to compare kernels: a grid, and sizes that grow together."""
        # ``places``: number of samples per size if there is one size, if there are two, and if there are more.
        each = places[min(len(self.ends), len(places)) - 1]
        axes = [dict.fromkeys(int(x) for x in np.geomspace(*e, each).round()) for e in self.ends.values()]
        found = [dict(zip(self.ends, c, strict=True)) for c in itertools.product(*axes)]
        if len(self.ends) > 1:  # sizes that grow together, as those of an image usually do
            steps = np.linspace(0.0, 1.0, _ALIKE) ** _CLOSER
            between = [[int(x) for x in (a * (b / a) ** steps).round()] for a, b in self.ends.values()]
            for c in zip(*between, strict=True):
                if (p := dict(zip(self.ends, c, strict=True))) not in found:
                    found.append(p)
        return [self.with_derived_sizes(p) for p in found]

    def random_sizes(self, seed: int, low: Sizes | None = None, high: Sizes | None = None) -> Iterator[dict[str, int]]:
        """Yield random log-uniform sizes, none below 2 unless the box ends there."""
        draw = random.Random(seed)
        ends = {
            n: (max(2, a, (low or {}).get(n, a)), max(2, min(b, (high or {}).get(n, b))))
            for n, (a, b) in self.ends.items()
        }
        while True:
            yield self.with_derived_sizes(
                {n: min(b, int(a * (max(a, b + 1) / a) ** draw.random())) for n, (a, b) in ends.items()}
            )
