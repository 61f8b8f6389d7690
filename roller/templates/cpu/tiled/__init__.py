"""Template for tiled reductions: a micro-kernel over packed panels."""
