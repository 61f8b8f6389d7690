"""Code generation for the CPU templates: loop nests in TIR, passes over them, and the build of a library."""
