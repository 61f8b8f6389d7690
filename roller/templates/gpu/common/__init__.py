"""Terms of the GPU performance model that templates share: occupancy, traffic, copies, and the work of a block."""
