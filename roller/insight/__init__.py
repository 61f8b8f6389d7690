"""What a training step or a model costs on a device that is not here: time, memory, and the choice of a device.

Nothing of it is imported by ``import roller``; only ``tracing`` needs PyTorch, and imports it when a model is traced.
"""
