"""Compiles one operator: expression, candidates, chosen kernel."""
