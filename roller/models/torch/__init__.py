"""PyTorch: modules and graphs are exported to ONNX, compiled, called with tensors, and compared with PyTorch."""
