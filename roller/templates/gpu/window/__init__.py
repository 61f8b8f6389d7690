"""Reductions over windows that a thread walks completely, in straight-line code."""
