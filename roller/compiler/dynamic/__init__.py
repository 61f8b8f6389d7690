"""Kernels for dynamic sizes: a few kernels cover a range, and new sizes need no compilation."""
