"""Terms of the CPU model that several templates use: caches, lanes, packing, and traffic."""
