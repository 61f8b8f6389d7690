"""Template of convolutions by Winograd's algorithm on a CPU."""
