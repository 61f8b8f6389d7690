"""The command line: one short file per verb, on top of the public functions."""
