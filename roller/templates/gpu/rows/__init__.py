"""Reductions over rows: lanes along the row, several rows a block."""
