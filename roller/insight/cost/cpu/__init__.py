"""Times of PyTorch's kernels on a CPU: each operator's work, priced by arithmetic rates, caches and page faults."""

from roller.insight.cost.cpu.pricer import ProcessorPricer

__all__ = ["ProcessorPricer"]
