"""GPU templates: one per structure (tiled reduction, row reduction, streaming)."""
