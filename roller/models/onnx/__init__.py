"""ONNX models: reads and simplifies them, lowers their operators and partitions them into kernels."""
