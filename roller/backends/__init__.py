"""Backends: each builds and launches the artifacts of one language."""
