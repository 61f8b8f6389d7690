"""HTML page shared by reports: one self-contained file, its scripts and style, and data without paths."""
