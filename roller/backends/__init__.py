"""Backends, which build and launch the artifacts of each kernel language."""
