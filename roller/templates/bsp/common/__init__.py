"""Code shared by all bulk-synchronous templates: the counts of a program, tile growth, and the price of phases."""
