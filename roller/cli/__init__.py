"""The command line: one short file per command, on top of the public functions."""
