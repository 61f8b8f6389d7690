"""A matmul in Triton, autotuned: what a Triton user would write. Imported only where Triton is installed."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

#: ``(BM, BN, BK, warps, stages)``: few, since each is compiled and timed within the benchmark's minutes.
_TILES = ((128, 128, 16, 8, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 3), (32, 64, 32, 4, 3), (128, 128, 32, 8, 3))


@triton.autotune(
    [triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s) for m, n, k, w, s in _TILES],
    key=["M", "N", "K"],
)
@triton.jit
def _kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: ANN001, ANN202
    columns = tl.cdiv(N, BN)
    rows = tl.program_id(0) // columns * BM + tl.arange(0, BM).to(tl.int64)
    cols = tl.program_id(0) % columns * BN + tl.arange(0, BN).to(tl.int64)
    depth = tl.arange(0, BK)
    at_a = a + rows[:, None] * K + depth[None, :]
    at_b = b + depth[:, None] * N + cols[None, :]
    inside_m, inside_n = rows[:, None] < M, cols[None, :] < N
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = K - k * BK
        x = tl.load(at_a, mask=inside_m & (depth[None, :] < left), other=0.0)
        y = tl.load(at_b, mask=(depth[:, None] < left) & inside_n, other=0.0)
        # Full float32: no TF32, as on the other sides.
        total = tl.dot(x, y, total, input_precision="ieee")
        at_a += BK
        at_b += BK * N
    tl.store(c + rows[:, None] * N + cols[None, :], total.to(c.dtype.element_ty), mask=inside_m & inside_n)


def matmul(a: Any, b: Any) -> Any:
    """Return ``a @ b`` for row-major ``(M, K)`` and ``(K, N)``."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)

    _kernel[grid](a, b, c, m, n, k)
    return c
