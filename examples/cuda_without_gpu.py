"""Construct a convolution for a V100, print the ranked programs and the CUDA C of the best; no GPU is touched."""

from __future__ import annotations

import roller


def main() -> None:
    """Run the example."""
    expr = roller.ops.conv2d(n=128, c=128, h=28, w=28, f=128, kh=3, kw=3, padding=1)
    for rank, candidate in enumerate(roller.construct(expr, device="v100", top_k=5), 1):
        print(f"{rank}. {candidate.estimate}: {candidate.program}")
    kernel = roller.compile(expr, device="v100", top_k=1)
    print(kernel.source)


if __name__ == "__main__":
    main()
