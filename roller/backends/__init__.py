"""Backends, which build and launch the artifacts for each language."""
