"""PyTorch: a module or graph exported to ONNX, compiled, compared with PyTorch itself, and called for it."""
