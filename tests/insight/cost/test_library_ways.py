"""The way in which a library runs a kernel, and what bounds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roller import load_spec, ops
from roller.insight.cost.kernel_launch_types import Kernel
from roller.insight.cost.kernel_prices import KernelPricer
from roller.insight.cost.library_kernel_choice import LibraryKernelChoice


def test_every_kernel_of_a_launch_moves_its_bytes_through_the_shared_cache():
    ways, launch = (
        LibraryKernelChoice(KernelPricer(load_spec("a100"), "library")),
        Kernel(ops.matmul(16, 16, 16), cache_bytes=1e10),
    )
    (_, once), (_, twice) = (ways.fastest(replace(launch, count=n))[0] for n in (1, 2))
    assert once.resource == twice.resource == "l2"
    assert twice.seconds == pytest.approx(2 * once.seconds)
