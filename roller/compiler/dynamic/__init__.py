"""Kernels for sizes that vary from call to call: few of them cover the ranges, none is compiled for a new size."""
