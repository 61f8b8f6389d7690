"""Emission of CPU templates as TIR: loop nests, passes over them, and the build of a library."""
