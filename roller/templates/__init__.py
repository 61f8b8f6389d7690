"""Kernel templates, one folder each: the programs it offers, their decisions and price, and the code it emits."""
