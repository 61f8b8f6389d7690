"""Shared by all templates of bulk-synchronous devices: counts of a program, growth of tiles, price of the phases."""
