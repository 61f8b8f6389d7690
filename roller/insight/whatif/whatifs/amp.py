"""What-if: automatic mixed precision, with 16-bit kernels in the forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass, field

from roller.insight.step.graph import StepGraph
from roller.insight.whatif import detect_already_applied_changes
from roller.insight.whatif.insertion import NewTask, insert
from roller.insight.whatif.price_changed_tasks import PricedValue, TaskPrices, uses_float32
from roller.insight.whatif.primitives import scale_each
from roller.insight.whatif.task_selection import compute_tasks, parameter_bytes, tasks_by_step
from roller.insight.whatif.what_if import Pricing, WhatIf, allowed_values_metadata


@dataclass(frozen=True)
class AMP(WhatIf):
    """Run the forward and backward passes in 16 bits; copies, integers, the update and the host stay unchanged.

    Parameters
    ----------
    dtype
        ``"bf16"`` or ``"fp16"``. The gradient scaler of fp16 adds a pass over all gradients.
    compute, memory
        Factors on the times of compute-bound and memory-bound kernels; 1/3 and 1/2 were published.
    prices
        ``"model"`` prices matrix products by their shapes, and also casts; ``"factor"`` applies only the factors.
    """

    dtype: str = field(default="bf16", metadata=allowed_values_metadata("bf16", "fp16"))
    compute: float = 1 / 3
    memory: float = 1 / 2
    prices: Pricing = field(default="model", metadata=allowed_values_metadata("model", "factor"))
    assumptions = ("Weights and gradients are cast once a step, each parameter in one pass; the update is on fp32.",)
    traced_with = (("dtype", "amp"),)

    def in_place(self, graph: StepGraph) -> str:
        """Return the reason if the profile already computes mostly in 16 bits; otherwise ``""``."""
        return detect_already_applied_changes.mixed_precision_reason(graph)

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph in mixed precision."""
        prices, by_model, scales = TaskPrices(graph), self.prices == "model", self.dtype == "fp16"
        factors, new = {}, []
        for task in (graph.tasks[n] for n in compute_tasks(graph, "forward", "backward")):
            if uses_float32(task):
                factor = self.compute if prices.limiting_resource(task) == "compute" else self.memory
                found = prices.time_ratio(task, dtype={"bf16": "bfloat16", "fp16": "float16"}[self.dtype])
                factors[task.id] = found if by_model and found else PricedValue(factor, "assumed")
        for gradient in graph.gradients if by_model else ():
            cast = prices.price_stream("cast", 1.5 * gradient.size_bytes, 1.5 * gradient.size_bytes)
            new.append(NewTask("cast", "kernel", cast.value, behind=gradient.ready, provenance=cast.provenance))
        for own in tasks_by_step(graph, compute_tasks(graph, "optimizer")).values() if by_model and scales else ():
            pass_us = prices.price_stream("unscale", parameter_bytes(graph), parameter_bytes(graph))
            new.append(NewTask("unscale", "kernel", pass_us.value, ahead=own[0], provenance=pass_us.provenance))
        return insert(scale_each(graph, factors), *new)
