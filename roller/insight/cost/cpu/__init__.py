"""What PyTorch's kernels take on a processor: work of every operator, priced by rates, caches and fresh pages."""

from roller.insight.cost.cpu.pricer import ProcessorPricer

__all__ = ["ProcessorPricer"]
