"""Predicts the time and memory of a training step or a model on a device, and compares devices.

Packages, each built on the preceding ones: ``trace`` (a step as plain data), ``memory``, ``cost`` (operator prices),
``step`` (the graph of a step), ``whatif``; then forecasts and comparisons. ``import roller`` does not import any of
them. Only ``trace.pytorch`` needs PyTorch, which is imported when a model is traced.
"""
