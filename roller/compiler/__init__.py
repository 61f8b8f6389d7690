"""Compiles one operator: from its expression through candidates to the chosen kernel."""
