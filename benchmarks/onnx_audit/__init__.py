"""Every ONNX operator of every operator set beside what the specification says; run by ``python -m``.

``python -m benchmarks.onnx_audit`` takes onnx's own node tests, written as each version of an operator has it, varies
their attributes, dtypes and shapes, and holds what roller computes to onnx's reference (to ONNX Runtime, where the
reference has no answer). It goes on where it was stopped and writes ``docs/results/onnx-operators.md``.
"""
