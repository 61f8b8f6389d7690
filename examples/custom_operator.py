"""An operator of your own: written in TVM's tensor expressions, compiled, checked, and asked why it is as it is.

Distances of all pairs of two sets of points, ``D[i, j] = sqrt(sum_k (A[i, k] - B[j, k])**2)``. No library has it, and
by NumPy's broadcasting it fills memory. Needs the processor of this machine only.
"""

from __future__ import annotations

import numpy as np
from tvm import te

import roller

POINTS, OTHERS, DIMENSIONS = 512, 768, 64


def main() -> None:
    """Run the example."""
    a = te.placeholder((POINTS, DIMENSIONS), name="A")
    b = te.placeholder((OTHERS, DIMENSIONS), name="B")
    k = te.reduce_axis((0, DIMENSIONS), name="k")
    squares = te.compute(
        (POINTS, OTHERS), lambda i, j: te.sum((a[i, k] - b[j, k]) * (a[i, k] - b[j, k]), axis=k), name="squares"
    )
    distances = te.compute((POINTS, OTHERS), lambda i, j: te.sqrt(squares[i, j]), name="D")

    kernel = roller.compile([a, b, distances], device="cpu", top_k=3)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((POINTS, DIMENSIONS), dtype=np.float32)
    y = rng.standard_normal((OTHERS, DIMENSIONS), dtype=np.float32)
    expected = np.sqrt(((x[:, None].astype(np.float64) - y[None]) ** 2).sum(axis=2))
    np.testing.assert_allclose(kernel(x, y), expected, rtol=1e-4, atol=1e-5)

    print(f"tiles: {kernel.program}")
    print(f"predicted: {kernel.estimate}")
    for candidate in kernel.candidates:
        measured = "not timed" if candidate.measured_s is None else f"measured {candidate.measured_s * 1e3:.4g} ms"
        print(f"  {candidate.estimate}; {measured}: {candidate.program}")


if __name__ == "__main__":
    main()
