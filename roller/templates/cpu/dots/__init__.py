"""Products whose rows are both contiguous: dot products, nothing packed."""
