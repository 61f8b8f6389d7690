"""CUDA backend: builds with NVRTC and launches with CuPy."""
