"""The CPU half of the model against random programs on this machine: ``python -m benchmarks.cpu_model``."""
