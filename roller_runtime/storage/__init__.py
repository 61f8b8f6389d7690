"""Folders with verified checksums, and files of arrays."""
