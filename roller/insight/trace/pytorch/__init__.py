"""Traces the operators and memory requests of a PyTorch model on a device that need not be present.

Device tensors have only shapes (``meta``), so nothing is computed or allocated. Two modes, both documented by PyTorch,
lie between the model and the kernels: one above autograd (``device_mode``), which reports properties and dispatches
calls as the device would, and one below autograd (``operator_recorder``), which records the operators that arrive.
"""
