"""Quantized models (QDQ, QLinear operators) as arithmetic on the stored integers."""
