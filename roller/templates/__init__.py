"""Kernel templates, one folder each: the programs that a template offers, their decisions, prices and code."""
