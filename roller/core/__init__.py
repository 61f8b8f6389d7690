"""Shared helpers that no device or stage owns: dtypes, files, validation, formulas, text for people."""
