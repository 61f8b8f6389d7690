"""ROCm backend: builds with hipcc and launches with CuPy's ROCm build."""
