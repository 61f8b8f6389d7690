"""Roller against the best of PyTorch, ONNX Runtime and NumPy on this processor: ``python -m benchmarks.cpu``."""
