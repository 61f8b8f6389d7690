"""CUDA: build with NVRTC, launch with CuPy."""
