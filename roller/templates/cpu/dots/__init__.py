"""Template for dot products: both operands are contiguous along the reduction, and nothing is packed."""
