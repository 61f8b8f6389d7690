"""Template of byte products by a CPU's dot-product instructions: words of four bytes along one reduction axis."""
