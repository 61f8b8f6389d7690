"""The published evaluations as suites: one way to run them, one file of results, one comparison with the last run."""
