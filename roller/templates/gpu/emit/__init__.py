"""Parts of GPU kernels that templates share, and the kernels' lowering to CUDA and HIP."""
