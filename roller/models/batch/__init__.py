"""Batch compilation of a model's kernels: jobs, workers, progress, proofs, predictions."""
