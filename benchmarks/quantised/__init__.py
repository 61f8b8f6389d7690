"""Models of fewer bits against ONNX Runtime on this processor: ``python -m benchmarks.quantised``."""
