"""What-if: a different device, for which every kernel is priced again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roller.errors import RollerError
from roller.insight.step.graph import StepGraph
from roller.insight.whatif.device_ratio import device_ratios
from roller.insight.whatif.price_changed_tasks import PricedValue
from roller.insight.whatif.primitives import scale, scale_each, select, with_lags
from roller.insight.whatif.task_selection import compute_tasks, network_tasks
from roller.insight.whatif.what_if import WhatIf


@dataclass(frozen=True)
class Device(WhatIf):
    """Run on a different device, given by name or specification file; ``host`` is a factor on the host's times."""

    device: str
    host: float = 1.0
    traced_with = (("device", "device"),)
    assumptions = ("The framework launches the same kernels there; copies between host and device take as long.",)
    of_several_ranks = True

    def change(self, graph: StepGraph) -> StepGraph:
        """Return the graph on the other device."""
        to = device_ratios(graph, self.device)
        if to.spec.traits.blocks != graph.has_device:
            own, other = ("GPU", "processor") if graph.has_device else ("processor", "GPU")
            raise RollerError(
                f"{graph.name}: Device: expected a {own}, as the step was recorded on, got {to.spec.name}: what a "
                f"{other} would run is not in it. Describe the step in an entry file, and ask `roller forecast`."
            )
        made = scale_each(graph, {n: to.kernel_time_ratio(graph.tasks[n]) for n in compute_tasks(graph)})
        made = scale_each(made, {n: PricedValue(to.link_ratio, "assumed") for n in network_tasks(graph)})
        made = scale(made, select(made, lambda t: t.lane.kind == "thread" and t.kind != "sync"), self.host, "assumed")
        made = with_lags(made, lambda d: d.lag_us * {"launch": to.launch_ratio, "thread": self.host}.get(d.kind, 1.0))
        return replace(made, device=to.spec, latency_us=graph.latency_us * to.launch_ratio)
