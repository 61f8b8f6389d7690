"""ONNX models: reading, operator lowerings, simplification and partition into kernels."""
