"""Terms of the CPU model that templates share: caches, lanes, packing, traffic."""
