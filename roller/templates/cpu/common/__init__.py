"""Terms of the CPU model that several templates use: caches, lanes, packing, traffic."""
