"""Terms of the GPU model that templates share: occupancy, traffic, copies, the work of a block."""
