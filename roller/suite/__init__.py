"""The training benchmark: sixteen models with inputs, steps and published sizes, predicted for devices."""
