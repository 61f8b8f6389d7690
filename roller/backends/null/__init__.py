"""Null device for tests without a GPU: computes results with the reference and reports estimates as measured times."""
