"""Template of tiled reductions: a micro-kernel over packed panels."""
