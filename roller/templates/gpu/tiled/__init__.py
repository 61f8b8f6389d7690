"""SIMT kernels for tiled reductions, with tiles in the scratchpad and register tiles."""
