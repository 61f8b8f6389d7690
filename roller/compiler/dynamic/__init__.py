"""Kernels for dynamic sizes: a few kernels cover a range, and no new size needs compilation."""
