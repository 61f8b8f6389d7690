"""Which candidates are worth timing: those the model cannot tell from its favourite."""

from __future__ import annotations

import math
from collections.abc import Sequence

from roller.construction.constructor import Candidate
from roller.hardware import DeviceSpec
from roller.perf.accuracy import kernel_family, ranking_error


def worth_timing(candidates: Sequence[Candidate], spec: DeviceSpec) -> tuple[int, ...]:
    """Return the positions of the candidates ``top_k="auto"`` times; one position means that none needs to be.

    A candidate is worth timing where its predicted interval overlaps that of the first: where the ratio of the two
    predictions is within one expected error of such ratios (``accuracy.ranking_error``). Of candidates that share a
    kernel (:func:`roller.perf.accuracy.kernel_family`) only the best one is: how they differ is predicted well, and a
    measurement would tell them apart no better.

    Parameters
    ----------
    candidates
        Best estimate first, as constructed.
    spec
        The device, with its ``accuracy``.

    Returns
    -------
    tuple of int
        Ascending; the first is 0.

    Examples
    --------
    >>> import roller
    >>> spec = roller.load_spec("v100")
    >>> found = roller.construct(roller.ops.matmul(4096, 4096, 4096), spec, top_k=10)
    >>> worth_timing(found[:1], spec), len(worth_timing(found, spec)) < 10
    ((0,), True)
    """
    first = candidates[0]
    kept, families = [0], {kernel_family(first.program)}
    for n, c in enumerate(candidates):
        family = kernel_family(c.program)
        behind = math.log(c.estimate.seconds / first.estimate.seconds)
        if family not in families and behind < ranking_error(spec, first.program, c.program):
            kept.append(n)
            families.add(family)
    return tuple(kept)
