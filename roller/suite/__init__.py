"""The training benchmark: sixteen models with inputs, steps and published sizes, and predictions for devices."""
