"""What tasks are priced by: twins of the profile, and the operator that they compute."""

from __future__ import annotations

import pytest

from roller.insight.step.graph import Task, TaskContext
from roller.insight.whatif.price_changed_tasks import TaskPrices
from tests.insight.step.graphs import STREAM, training


def test_launches_are_no_twins_of_kernels():
    launch, kernel = (
        next(t for t in training().tasks if t.name == name) for name in ("cudaLaunchKernel", "relu relu1")
    )
    rate = TaskPrices(training()).calibrated_bytes_per_us
    assert rate == pytest.approx(2 * 4 * 262144 / kernel.duration_us) and launch.duration_us < kernel.duration_us


@pytest.mark.parametrize(
    ("name", "bound"), [("aten::mm", "compute"), ("aten::bmm", "compute"), ("aten::mmm", "memory")]
)
def test_products_are_known_by_their_operator_where_shapes_are_missing(name, bound):
    task = Task(0, "kernel", "kernel", STREAM, 9.0, 0.0, 9.0, context=TaskContext(operator=name))
    assert TaskPrices(training()).limiting_resource(task) == bound
