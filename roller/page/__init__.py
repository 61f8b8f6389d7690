"""HTML page shared by reports: one self-contained file, its scripts and styles, and data without paths."""
