"""A trace of a PyTorch model on a device that is not here: the operators it would run and the memory it would request.

Device tensors have only shapes (``meta``), so nothing is computed or allocated. Two modes, both documented by PyTorch,
lie between the model and the kernels: one above autograd (``device``), which answers and dispatches as the device
would, and one below (``recorder``), which records the operators that arrive.
"""
