"""Traces of the suite's models: operators and memory of their steps, from shapes alone."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from roller.hardware import DeviceSpec
from roller.insight.traced_step import TracedStep
from roller.insight.tracing import trace_providers
from roller.suite.entry import Workload


def trace_workload(
    name: str, workload: Workload, *, batch: int | None = None, device: str | DeviceSpec | None = None
) -> TracedStep:
    """Trace the training step of a workload, by default at its own batch size."""
    module = make_provider_module(name, workload)
    return trace_providers(
        name, str(module.__file__), model_provider=module.model_provider, input_provider=module.input_provider,
        iteration_provider=module.iteration_provider, batch=batch, device=device,
    )  # fmt: skip


def make_provider_module(name: str, workload: Workload) -> ModuleType:
    """Return a module with the three providers for a workload, under the file name of the model."""

    def input_provider(batch_size: int = workload.batch) -> tuple[Any, ...]:
        return workload.inputs(batch_size)

    build = inspect.unwrap(getattr(workload.build, "func", workload.build))
    module = ModuleType(name)
    module.__file__ = inspect.getfile(build)
    vars(module).update(model_provider=workload.build, input_provider=input_provider, iteration_provider=workload.step)
    return module
