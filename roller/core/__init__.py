"""Shared helpers that no device or stage owns: dtypes, files, validation, formulas, and human-readable text."""
