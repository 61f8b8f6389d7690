"""Element-wise kernels: lanes along contiguous axes, operands from the caches."""
