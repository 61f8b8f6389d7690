"""Parts of GPU kernels that templates share, and their lowering to CUDA and HIP."""
