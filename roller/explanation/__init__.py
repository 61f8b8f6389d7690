"""Explanations of programs: construction steps, price terms, limits, and comparisons with other programs."""
