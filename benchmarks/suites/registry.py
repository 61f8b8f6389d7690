"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.suites import (
    ablations,
    compile_time,
    forecast,
    irregular,
    models,
    operator_sets,
    resource_change,
    scale_out,
    skyline,
    sokoban,
    training,
    whatif,
)
from benchmarks.suites.suite import Suite

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        operator_sets.OPERATORS,
        compile_time.SUITE,
        scale_out.SUITE,
        operator_sets.SMALL,
        irregular.SUITE,
        operator_sets.TENSOR_CORE,
        resource_change.SUITE,
        sokoban.SUITE,
        models.SUITE,
        ablations.SUITE,
        forecast.SUITE,
        whatif.SUITE,
        skyline.SUITE,
        training.SUITE,
    )
}
