"""CUDA: builds with NVRTC and launches with CuPy."""
