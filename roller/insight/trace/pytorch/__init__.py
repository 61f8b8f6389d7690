"""A trace of a PyTorch model on a device that is not here: operators it would run, and memory it would ask for.

Tensors of the device are tensors of shapes alone (``meta``), so nothing is computed and nothing is allocated. Two
modes, both documented by PyTorch, stand between the model and the kernels: one above autograd (``device``), which
answers as the device would and decides what the device would decide, and one below (``recorder``), which writes down
what arrives.
"""
