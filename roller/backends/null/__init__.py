"""Null device for tests without a GPU: computes with the reference, and "measures" the estimate."""
