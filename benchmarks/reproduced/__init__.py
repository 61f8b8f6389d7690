"""The published tables and figures of six papers beside ours: a module per paper, rows from committed results."""
