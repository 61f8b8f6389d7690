"""Runtime: parallel builds, checks against the reference, timing, and records (standard library and NumPy only)."""
