"""Kernel templates, a folder each: programs (pool), their decisions and price, and the code they become (emit)."""
