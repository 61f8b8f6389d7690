"""Lowered models as data: steps, values, places in memory, and results of proofs."""
