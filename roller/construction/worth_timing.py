"""Selects the candidates worth timing: those that the model cannot distinguish from the predicted best."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from roller.construction.constructor import Candidate
from roller.hardware import DeviceSpec
from roller.perf.expected_errors import kernel_family_key, ranking_error

#: Minimum expected relative gain for which one more candidate is timed: about the resolution of a measurement.
GAIN = 0.02
#: Expected error (one sigma of the logarithm) of the predicted time ratio between two register tiles of one form. It is
#: based on the 95 pairs timed in ResNet-50, DenseNet-121, BERT large and DeepLab v3 on a Zen 1. Their median error is
#: 0.03; the root mean square is 0.13, because some times were disturbed and some rivals were in fact slower.
FORM_ERROR = 0.05
#: Number of integration points for the expected minimum of uncertain times, and sigmas covered on either side.
_POINTS, _SIGMAS = 241, 5.0


def positions_of_candidates_to_time(candidates: Sequence[Candidate], spec: DeviceSpec) -> tuple[int, ...]:
    """Return the positions of the candidates that ``top_k="auto"`` times; if there is only one, none is timed.

    >>> import roller
    >>> spec = roller.load_spec("v100")
    >>> found = roller.construct(roller.ops.matmul(4096, 4096, 4096), spec, top_k=10)
    >>> positions_of_candidates_to_time(found[:1], spec), len(positions_of_candidates_to_time(found, spec)) < 10
    ((0,), True)
    """
    # Among candidates that share a kernel, only the best is timed, because their ratio is predicted well.
    seconds = [c.estimate.seconds for c in candidates]
    families = [kernel_family_key(c.program) for c in candidates]
    return positions_worth_timing(seconds, families, ranking_error(spec), [c.program.structure for c in candidates])


def expected_seconds_of_fastest(seconds: Sequence[float], spec: DeviceSpec, forms: Sequence[Hashable] = ()) -> float:
    """Return the expected time, in seconds, of the candidate that proves fastest when all are timed.

    >>> import roller
    >>> spec = roller.load_spec("v100")
    >>> (expected_seconds_of_fastest([2.0], spec),
    ...  expected_seconds_of_fastest([2.0, 2.0], spec) < expected_seconds_of_fastest([2.0, 2.2], spec) < 2.0)
    (2.0, True)
    >>> expected_seconds_of_fastest([2.0, 2.0], spec) < expected_seconds_of_fastest([2.0, 2.0], spec, "aa") < 2.0
    True
    """
    first, error = min(seconds), ranking_error(spec)
    if len(seconds) == 1:
        return first
    behind: dict[Hashable, list[float]] = {}
    for n, s in enumerate(seconds):
        behind.setdefault(forms[n] if forms else n, []).append(math.log(s / first))
    inner = min(error, FORM_ERROR)
    least = [m[0] if len(m) == 1 else _expected_minimum(m, inner) for m in behind.values()]
    return first * math.exp(least[0] if len(least) == 1 else _expected_minimum(least, error))


def positions_worth_timing(
    seconds: Sequence[float],
    families: Sequence[Hashable],
    error: float,
    structures: Sequence[Hashable] = (),
) -> tuple[int, ...]:
    """Return the positions of candidates that may be the fastest: the first, and at most one from each other family.

    >>> positions_worth_timing([1.0, 1.01, 1.05, 1.2], ["a", "a", "b", "c"], 0.1)
    (0, 2)
    >>> positions_worth_timing([1.0] * 10, range(10), 0.1)
    (0, 1)
    >>> positions_worth_timing([1.0] * 10, range(10), 0.03)
    (0,)
    >>> positions_worth_timing([1.0, 1.0, 1.0], "abc", 0.1, ["tiled", "tiled", "winograd4"])
    (0, 2)
    """
    # All kernels of an algorithm share its errors, so the best kernel of each algorithm comes before the second of any.
    firsts = {structures.index(s) for s in structures}
    kept, behind, known = [0], [0.0], {families[0]}
    for n in sorted(range(len(seconds)), key=lambda n: (n not in firsts, n)):
        gap = math.log(seconds[n] / seconds[0])
        if families[n] in known or gap >= error:
            continue
        # The gain in the expected minimum, with independent normal errors of ``error / sqrt(2)`` each.
        if _expected_minimum(behind, error) - _expected_minimum([*behind, gap], error) < GAIN:
            if n in firsts:
                continue
            break  # all following candidates are predicted to be even slower
        known.add(families[n])
        kept.append(n)
        behind.append(gap)
    return tuple(sorted(kept))


def _expected_minimum(means: Sequence[float], error: float) -> float:
    """Return the expected minimum of normal variables whose pairwise differences have standard deviation ``error``."""
    sigma = error / math.sqrt(2)
    x = np.linspace(min(means) - _SIGMAS * sigma, min(means) + _SIGMAS * sigma, _POINTS)
    above = np.ones_like(x)
    for m in means:
        above = above * np.array([math.erfc((v - m) / error) / 2 for v in x])
    steps = (above[1:] + above[:-1]) / 2 * np.diff(x)
    return float(x[0] + steps.sum())
