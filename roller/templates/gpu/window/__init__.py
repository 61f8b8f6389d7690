"""Reductions over windows, each of which one thread processes completely in straight-line code."""
