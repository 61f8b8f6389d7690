"""Products on matrix units that a group of four warps issues together (wgmma)."""
