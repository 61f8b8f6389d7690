"""The HTML page of reports: one file without requests, its script and style, and data without paths."""
