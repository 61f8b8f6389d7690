"""Products of bytes by the dot products of a CPU: words of four bytes along one reduction axis."""
