"""Construction against Sokoban, its exhaustive predecessor, on one model: the enumeration and the comparison."""
