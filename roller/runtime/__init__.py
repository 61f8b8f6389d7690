"""Runtime: parallel builds, checks against the reference, timing, records (standard library and NumPy only)."""
