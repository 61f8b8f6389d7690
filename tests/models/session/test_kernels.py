"""Memory that kernels work on."""

from __future__ import annotations

import mmap

import pytest

from roller_runtime.session.cpu_kernel_loading import LINE_BYTES, allocate_aligned

HUGE_BYTES = 1 << 21


@pytest.mark.parametrize("nbytes", [1, 100, 4096, HUGE_BYTES - 1])
def test_small_memory_starts_at_a_cache_line(nbytes):
    found = allocate_aligned(nbytes)
    assert found.nbytes == nbytes and found.ctypes.data % LINE_BYTES == 0 and found.flags.writeable


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
@pytest.mark.parametrize("nbytes", [HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES - 7])
def test_large_memory_starts_at_a_huge_page(nbytes):
    several = [allocate_aligned(nbytes) for _ in range(3)]
    for n, found in enumerate(several):
        assert found.nbytes == nbytes and found.ctypes.data % HUGE_BYTES == 0
        found[:: max(1, nbytes // 5)] = n + 1
        found[-1] = n + 1
    assert [int(found[0]) for found in several] == [int(found[-1]) for found in several] == [1, 2, 3], "each its own"
