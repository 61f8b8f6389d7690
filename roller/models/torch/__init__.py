"""PyTorch: modules and graphs exported to ONNX, compiled, called with tensors, and compared with PyTorch."""
