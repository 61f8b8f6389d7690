"""Poplar codelets: source only; building and launching raise with the reason."""
