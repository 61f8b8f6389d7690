"""Kernel templates, one folder each, with the programs it offers, their decisions and price, and the code it emits."""
