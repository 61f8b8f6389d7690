"""Windows that a thread walks whole, in straight-line code."""
