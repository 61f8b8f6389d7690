"""Products on matrix units that a group of four warps starts together (wgmma)."""
