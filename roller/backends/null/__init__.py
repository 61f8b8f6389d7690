"""Null device: computes with the reference, "measures" the estimate; for tests where no GPU is."""
