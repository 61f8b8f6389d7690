"""The memory of a training step: what PyTorch's caching allocator makes of a trace, and whether it fits."""
