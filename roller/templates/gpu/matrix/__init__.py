"""Products of fragments that a warp computes on a matrix unit."""
