"""Backends: build and launch the artifacts of each language."""
