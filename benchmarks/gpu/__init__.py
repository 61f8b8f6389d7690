"""The GPU benchmark: bundles made on a build machine, one command on the GPU machine, a table from its JSON."""
