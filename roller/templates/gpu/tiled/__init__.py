"""Tiled reductions on threads: tiles in the scratchpad, register tiles."""
