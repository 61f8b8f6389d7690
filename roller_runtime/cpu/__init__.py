"""Kernels on this processor: TVM's runtime library, threads, and checks of arrays and processor features."""
