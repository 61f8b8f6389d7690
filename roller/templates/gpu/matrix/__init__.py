"""Products by fragments of a matrix unit that a warp computes."""
