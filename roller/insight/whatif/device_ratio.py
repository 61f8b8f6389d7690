"""Ratios of kernel times on two devices."""

from __future__ import annotations

from dataclasses import dataclass

from roller.errors import RollerError
from roller.hardware import DeviceSpec
from roller.hardware.peak_rates import peak_flops_and_instruction_class
from roller.insight.step.graph import StepGraph, Task
from roller.insight.step.parse_profile_dtype_names import dtype_from_profile_name
from roller.insight.whatif.price_changed_tasks import PricedValue, TaskPrices
from roller_runtime.core.dtypes import FLOATS


@dataclass(frozen=True)
class DeviceRatios:
    """Ratios of times on ``spec`` to times on ``before``, the profile's device."""

    prices: TaskPrices
    before: DeviceSpec
    spec: DeviceSpec

    def kernel_time_ratio(self, task: Task) -> PricedValue:
        """Return a kernel's time ratio, from its operator's prices if known, else from the rates that limit it."""
        found = self.prices.time_ratio(task, device=self.spec)
        if found is not None:
            return found
        old, new = self.before.sustained, self.spec.sustained
        if self.prices.limiting_resource(task) == "compute":
            dtype = next((d for d in map(dtype_from_profile_name, task.context.dtypes) if d in FLOATS), "float32")
            return PricedValue(_peak_flops_per_s(old, dtype) / _peak_flops_per_s(new, dtype), "predicted")
        memory, other = old.memory_layers[-1], new.memory_layers[-1]
        return PricedValue(memory.bandwidth_bytes_per_s / other.bandwidth_bytes_per_s, "predicted")

    @property
    def link_ratio(self) -> float:
        """Ratio of transfer times between devices; 1 if a link bandwidth is missing."""
        old, new = self.before.link_bytes_per_s, self.spec.link_bytes_per_s
        return old / new if old and new else 1.0

    @property
    def launch_ratio(self) -> float:
        """Ratio of launch latencies; 1 if one is missing."""
        old, new = self.before.execution.launch_s, self.spec.execution.launch_s
        return new / old if old and new else 1.0


def device_ratios(graph: StepGraph, device: str) -> DeviceRatios:
    """Return the ratios of times on ``device`` to times on the profile's device."""
    from roller.compile_arguments import spec_and_local_device

    if graph.device is None:
        raise RollerError(
            f"{graph.name}: device: expected the device of the profile, to compare {device} with, got none. Name it: "
            f"--device, or from_kineto(..., device=)."
        )
    return DeviceRatios(TaskPrices(graph), graph.device, spec_and_local_device(device)[0])


def _peak_flops_per_s(spec: DeviceSpec, dtype: str) -> float:
    found = peak_flops_and_instruction_class(spec, dtype) or peak_flops_and_instruction_class(spec, "float32")
    return found[0] if found else 2 * spec.compute.ops_per_cycle_per_unit["fma"] * spec.units * spec.clock_hz
