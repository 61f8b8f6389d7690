"""Compilation of models: reading, lowering, compiling kernels and running a plan. ``compile.py`` lists all stages."""
