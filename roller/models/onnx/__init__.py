"""From an ONNX model to a plan of kernels: reader, operators, partition, batch compilation."""
