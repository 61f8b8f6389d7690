"""Poplar codelets: only source is generated; building and launching raise an error that gives the reason."""
