"""Tiled reductions on threads, with tiles in the scratchpad and register tiles."""
