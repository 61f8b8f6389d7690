"""Model graphs between reading and running: parts, fusion, layouts, steps, memory plan. Independent of ONNX."""
