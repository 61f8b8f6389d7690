"""Template for convolutions using Winograd's algorithm on a CPU."""
