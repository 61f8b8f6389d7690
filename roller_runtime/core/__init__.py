"""Helpers without a device: dtypes, files, validation, formulas, locks, and text for people."""
