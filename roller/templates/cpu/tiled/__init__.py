"""Tiled reductions: a micro-kernel over packed panels."""
