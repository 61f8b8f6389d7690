"""Template for reductions over rows and of the stages after them, one row at a time."""
