"""The kernels of a model as one batch: jobs, workers, progress, proofs, predictions."""
