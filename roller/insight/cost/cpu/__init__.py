"""Time of PyTorch's kernels on a CPU: the work of each operator, priced by rates, caches and fresh pages."""

from roller.insight.cost.cpu.pricer import ProcessorPricer

__all__ = ["ProcessorPricer"]
