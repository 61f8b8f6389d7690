"""Reductions over rows and what follows them, a row at a time."""
