"""Decoders with caches: times per token, and products with 4-bit weights."""
