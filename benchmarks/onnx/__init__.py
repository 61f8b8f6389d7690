"""Whole models against ONNX Runtime on this processor: ``python -m benchmarks.onnx``."""
