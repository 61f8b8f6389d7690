"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suites import irregular, operator_sets, scale_out
from benchmarks.suites.suite import Suite

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        operator_sets.OPERATORS,
        scale_out.SUITE,
        operator_sets.SMALL,
        irregular.SUITE,
        operator_sets.TENSOR_CORE,
    )
}
