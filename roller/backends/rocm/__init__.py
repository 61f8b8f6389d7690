"""ROCm: build with hipcc, launch with CuPy's ROCm build."""
