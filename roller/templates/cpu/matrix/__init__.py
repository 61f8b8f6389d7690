"""Template for byte products with a CPU's dot-product instructions: words of four bytes along one reduction axis."""
