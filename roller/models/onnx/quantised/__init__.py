"""Rewrites quantized models (QDQ, QLinear operators) to arithmetic on the stored integers."""
