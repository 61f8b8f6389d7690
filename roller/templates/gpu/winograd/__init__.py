"""Convolutions using Winograd's algorithm on a GPU."""
