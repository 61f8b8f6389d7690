"""Code shared by all bulk-synchronous templates: counts of a program, growth of tiles, and price of the phases."""
