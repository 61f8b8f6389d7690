"""Template for element-wise kernels: lanes along contiguous axes, operands from the caches."""
