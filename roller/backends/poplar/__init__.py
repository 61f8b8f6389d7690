"""Poplar codelets: source only; building and launching raise an error that gives the reason."""
