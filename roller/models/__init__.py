"""Compilation of models: reading, lowering, batch compilation, execution of a plan. ``compile.py`` names all stages."""
