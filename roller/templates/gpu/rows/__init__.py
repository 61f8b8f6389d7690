"""Reductions over rows: lanes along the row, several rows per block."""
