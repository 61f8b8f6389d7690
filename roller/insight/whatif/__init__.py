"""Predicts the effect of optimisations by changing and simulating the graph of a step."""
