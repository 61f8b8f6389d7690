"""Whole models between reading and running: parts, fusion, layouts, steps, plan of memory. Knows no ONNX."""
