"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suites import forecast, irregular, operator_sets, scale_out, skyline, training, whatif
from benchmarks.suites.suite import Suite

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        operator_sets.OPERATORS,
        scale_out.SUITE,
        operator_sets.SMALL,
        irregular.SUITE,
        operator_sets.TENSOR_CORE,
        forecast.SUITE,
        whatif.SUITE,
        skyline.SUITE,
        training.SUITE,
    )
}
