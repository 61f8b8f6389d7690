"""Reductions over windows that a thread walks whole, in straight-line code."""
