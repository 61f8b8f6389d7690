"""Memory of a training step: a trace in PyTorch's caching allocator, and whether it fits a device."""
