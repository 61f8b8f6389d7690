"""The command line: one thin file per verb over the public functions."""
