"""Plans of whole models, and what runs them: no ONNX, no compiler, no constructor."""
