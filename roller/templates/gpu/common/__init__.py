"""Terms of the GPU model that templates share: occupancy, traffic, copies, and the work of a block."""
