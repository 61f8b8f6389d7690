"""Execution of model plans, independent of ONNX, the compiler and the constructor."""
