"""Model graphs between reading and running, independent of ONNX: parts, fusion, layouts, steps and memory plan."""
