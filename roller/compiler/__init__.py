"""Compiles one operator: expression, candidates, and chosen kernel."""
