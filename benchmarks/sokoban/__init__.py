"""Construction against Sokoban, its exhaustive predecessor, on one model."""
