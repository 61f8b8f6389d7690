"""Template for reductions over rows and for the stages after them, one row at a time."""
