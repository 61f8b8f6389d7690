"""Convolutions by Winograd's algorithm on a CPU."""
